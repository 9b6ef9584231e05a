"""A short run of ``tests/soaking.py``, which goes on for as long as is wanted."""

from soaking import soak


def test_readers_follow_without_an_error_or_a_mixed_answer(tmp_path):
    found = soak(tmp_path, readers=2, seconds=6, every=1.0)
    assert found["errors"] == []
    assert found["mixed"] == []
    assert found["flips"] >= 3
    assert found["asked"] >= 20
