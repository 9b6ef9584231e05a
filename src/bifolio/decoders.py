"""Which decoder, by the options of a question."""

from __future__ import annotations

from collections.abc import Sequence

from bifolio import decode, passagewise
from bifolio.hypotheses import Decoded, Mixture
from bifolio.options import AskOptions
from bifolio.protocols import Branches


def decode_all(branches: Branches, mixtures: Sequence[Mixture], chosen: AskOptions) -> list[list[Decoded]]:
    """Answers of each question, best first; at least one.

    Raises:
        UsageError: no answer has any probability.
    """
    room, beams, penalty = chosen.max_tokens, chosen.beam, chosen.length_penalty
    if chosen.temperature is not None:
        searches = [
            decode.draw(
                mixture,
                max_tokens=room,
                temperature=chosen.temperature,
                top_p=1.0 if chosen.top_p is None else chosen.top_p,
                seed=chosen.seed or 0,
                n_best=chosen.n_best,
            )
            for mixture in mixtures
        ]
        return decode.run(branches, searches)
    if chosen.decoder == "thorough":
        return passagewise.thorough(branches, mixtures, max_tokens=room, beams=beams, length_penalty=penalty)
    if chosen.decoder == "fast":
        return passagewise.fast(branches, mixtures, max_tokens=room, beams=beams, length_penalty=penalty)
    searches = [
        decode.beam(
            mixture,
            max_tokens=room,
            beams=beams,
            n_best=chosen.n_best,
            length_penalty=penalty,
            groups=chosen.n_best if chosen.diversity else 1,
            diversity=chosen.diversity,
        )
        for mixture in mixtures
    ]
    found = decode.run(branches, searches)
    if not chosen.add_thorough:
        return found
    more = passagewise.thorough(branches, mixtures, max_tokens=room, beams=beams, length_penalty=penalty)
    return [decode.ranked([*mine, *theirs], penalty) for mine, theirs in zip(found, more, strict=True)]
