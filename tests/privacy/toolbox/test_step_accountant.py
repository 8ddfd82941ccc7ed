import pytest

from dp_fedmed.privacy import StepAccountant, get_privacy_spent


def make(**more):
    arguments = {"noise_multiplier": 1.0, "sample_rate": 0.01, "delta": 1e-5, "max_epsilon": 2.0}
    return StepAccountant(**{**arguments, **more})


def test_it_is_a_face_of_the_same_engine():
    accountant = make()
    assert accountant.get_epsilon() == 0.0
    assert accountant.event is None
    accountant.step(300)
    accountant.step()
    expected = get_privacy_spent(noise_multiplier=1.0, sample_rate=0.01, steps=301, delta=1e-5)
    assert accountant.get_epsilon() == expected
    assert accountant.event.count == accountant.steps == 301


@pytest.mark.parametrize("method", ["rdp", "pld"])
def test_the_estimated_steps_fit_and_one_more_does_not(method):
    accountant = make(method=method)
    accountant.step(100)
    left = accountant.estimate_steps_to_budget()
    accountant.step(left)
    assert not accountant.is_budget_exceeded()
    assert 0.0 <= accountant.remaining_budget() < 0.01
    assert accountant.estimate_steps_to_budget() == 0
    accountant.step()
    assert accountant.is_budget_exceeded()
    assert accountant.remaining_budget() == 0.0


def test_without_a_budget():
    accountant = make(max_epsilon=None)
    accountant.step(10**6)
    assert not accountant.is_budget_exceeded()
    with pytest.raises(ValueError, match="max_epsilon"):
        accountant.remaining_budget()


@pytest.mark.parametrize("steps", [0, -1, 1.5, True, "3"])
def test_bad_steps_are_refused(steps):
    with pytest.raises((TypeError, ValueError), match="num_steps"):
        make().step(steps)
