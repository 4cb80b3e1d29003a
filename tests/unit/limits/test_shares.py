"""How a bound is divided among programs and users."""

from otel_gpu.limits.shares import EntryOwner, Shares

BOUND = 4096


def take_all(shares, holder):
    """How many entries a program gets that wants as many as there are."""
    return sum(shares.take(holder) for _ in range(BOUND))


def test_one_program_gets_half():
    assert take_all(Shares(BOUND), EntryOwner(1, 1000)) == BOUND // 2


def test_the_programs_of_one_user_leave_a_quarter():
    """However many there are."""
    shares = Shares(BOUND)

    assert sum(take_all(shares, EntryOwner(pid, 1000)) for pid in range(100)) == BOUND * 3 // 4


def test_every_further_user_finds_room():
    """Three users who take all that they get leave room for a program of a fourth."""
    shares = Shares(BOUND)
    for uid in (1001, 1002, 1003):
        for pid in range(100):
            take_all(shares, EntryOwner(100 * uid + pid, uid))

    assert take_all(shares, EntryOwner(1, 1000)) == 32


def test_what_is_given_back_is_free_again():
    shares = Shares(BOUND)
    greedy, late = EntryOwner(1, 1000), EntryOwner(2, 1000)
    for _ in range(take_all(shares, greedy)):
        shares.release(greedy)

    assert take_all(shares, late) == BOUND // 2
