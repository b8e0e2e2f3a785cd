"""Terminated and cut episodes (the specification's section 8)."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import disco
from disco import values
from tests.disco.common import (
    SIZES,
    TRANSFORMER_SIZES,
    float64,
    random_outputs,
    random_state,
    random_trajectory,
    relative_difference,
    small_rule,
    targets_of,
)

END = 2  # The transition that ends the first episode.


def trajectory_with_end(*, last: bool, terminated: bool) -> disco.Trajectory:
    """Both trajectories of the batch end an episode at transition END, or go on."""
    trajectory = random_trajectory(num_transitions=6, batch_size=2)
    shape = trajectory.action.shape
    ends = jnp.zeros(shape, bool).at[END].set(True)
    return dataclasses.replace(
        trajectory,
        last=ends & last,
        discount=1.0 - (ends & terminated).astype(trajectory.reward.dtype),
        mask=jnp.ones(shape, bool).at[END + 1].set(not last),
    )


def exchange_from(first_row: int, tree):
    """Exchanges what the batch's two trajectories hold from a row on.

    What depends on means over the batch (moments, the lifetime RNN) does not see it.
    """
    return jax.tree.map(lambda x: jnp.concatenate([x[:first_row], x[first_row:, ::-1]]), tree)


READERS = pytest.mark.parametrize("sizes", [SIZES, TRANSFORMER_SIZES], ids=["lstm", "transformer"])


def targets_before_and_after_exchange(sizes, trajectory: disco.Trajectory):
    """Targets, and the targets when the second episodes are exchanged within the batch."""
    rule = small_rule(sizes=sizes)
    outputs, target_outputs = (random_outputs(rule, trajectory, seed) for seed in (1, 2))
    # The transition from END + 1 to the second episode counts in the moments of advantages. They
    # stay the same if its first state's policy and values do.
    for one in (outputs, target_outputs):
        for name in ("logits", "q"):
            one[name] = one[name].at[END + 1].set(one[name][END + 1, :1])
    state = random_state(rule)
    targets, _ = targets_of(rule, outputs, target_outputs, trajectory, state)
    # State END + 1 is the first episode's last; transition END + 1 leads to the second episode.
    exchanged, _ = targets_of(
        rule,
        exchange_from(END + 2, outputs),
        exchange_from(END + 2, target_outputs),
        dataclasses.replace(
            exchange_from(END + 1, dataclasses.replace(trajectory, observation=())),
            observation=trajectory.observation,
        ),
        state,
    )
    return targets, exchanged


@READERS
@pytest.mark.parametrize("terminated", [False, True])
def test_targets_do_not_see_the_next_episode(sizes, terminated):
    with float64():
        trajectory = trajectory_with_end(last=True, terminated=terminated)
        targets, exchanged = targets_before_and_after_exchange(sizes, trajectory)
        first_episode = jax.tree.map(lambda x: x[: END + 1], targets)
        first_episode_exchanged = jax.tree.map(lambda x: x[: END + 1], exchanged)
        assert relative_difference(first_episode_exchanged, first_episode) < 1e-9


@READERS
def test_targets_see_the_rest_of_their_own_episode(sizes):
    with float64():
        trajectory = trajectory_with_end(last=False, terminated=False)
        targets, exchanged = targets_before_and_after_exchange(sizes, trajectory)
        for name in ("pi", "y", "z", "q_target", "advantage"):
            before, after = getattr(targets, name)[END], getattr(exchanged, name)[END]
            assert float(jnp.max(jnp.abs(before - after))) > 1e-4, name


@pytest.mark.parametrize(("terminated", "bootstraps"), [(False, True), (True, False)])
def test_bootstraps_from_the_last_observation_of_a_cut_episode_only(terminated, bootstraps):
    rule = small_rule()
    trajectory = trajectory_with_end(last=True, terminated=terminated)
    outputs = random_outputs(rule, trajectory, 1)
    target_outputs = random_outputs(rule, trajectory, 2)
    estimates = jax.jit(values.estimates_from_outputs)(outputs, target_outputs, trajectory, rule)
    end_value = estimates.target_value[END + 1]
    expected = trajectory.reward[END] + bootstraps * rule.discount * end_value
    np.testing.assert_allclose(estimates.q_target[END], expected, rtol=1e-5)


def test_mask_does_not_change_targets():
    rule = small_rule()
    trajectory = random_trajectory()
    outputs, state = random_outputs(rule, trajectory), random_state(rule)
    unmasked = dataclasses.replace(trajectory, mask=jnp.ones_like(trajectory.mask))
    result = targets_of(rule, outputs, outputs, trajectory, state)
    assert relative_difference(targets_of(rule, outputs, outputs, unmasked, state), result) == 0


def test_masked_transitions_are_not_learned_from():
    rule = small_rule()
    trajectory = random_trajectory()
    outputs = random_outputs(rule, trajectory)
    targets, _ = targets_of(rule, outputs, outputs, trajectory, random_state(rule))
    gradients, _ = jax.jit(jax.grad(rule.output_loss, has_aux=True))(outputs, targets, trajectory)
    for name, gradient in gradients.items():
        size = jnp.max(jnp.abs(gradient[:-1]), axis=tuple(range(2, gradient.ndim)))
        assert bool(jnp.all(size[~trajectory.mask] == 0)), name
        assert bool(jnp.all(gradient[-1] == 0)), name
        if name != "aux_pi":  # Which has nothing to learn where the episode terminates.
            assert bool(jnp.all(size[trajectory.mask] > 0)), name


def test_loss_is_the_mean_over_unmasked_transitions():
    rule = small_rule()
    trajectory = random_trajectory()
    outputs = random_outputs(rule, trajectory)
    targets, _ = targets_of(rule, outputs, outputs, trajectory, random_state(rule))
    losses, _ = jax.jit(rule.transition_losses)(outputs, targets, trajectory)
    output_loss = jax.jit(rule.output_loss)
    loss, _ = output_loss(outputs, targets, trajectory)
    np.testing.assert_allclose(loss, np.mean(np.asarray(losses)[trajectory.mask]), rtol=1e-5)

    nothing = dataclasses.replace(trajectory, mask=jnp.zeros_like(trajectory.mask))
    assert float(output_loss(outputs, targets, nothing)[0]) == 0.0


def test_on_terminations_alone_last_says_nothing_new():
    """So that the published rule, which knows only terminations, gives the same numbers."""
    rule = small_rule()
    trajectory = random_trajectory()
    outputs, state = random_outputs(rule, trajectory), random_state(rule)
    terminal = trajectory.discount == 0
    assert bool(terminal.any())
    with_last = dataclasses.replace(trajectory, last=terminal)
    without = dataclasses.replace(trajectory, last=jnp.zeros_like(terminal))
    result = targets_of(rule, outputs, outputs, with_last, state)
    assert relative_difference(targets_of(rule, outputs, outputs, without, state), result) < 1e-6


@pytest.mark.parametrize(
    "rule",
    [
        small_rule(masks_moments=True),
        disco.HandSetRule(),
        disco.ActorCritic(normalize_advantage=True),
    ],
    ids=["discovered", "hand_set", "actor_critic"],
)
def test_masked_transitions_do_not_count_in_the_moments(rule):
    """A rule that counted them would normalise the others' advantages otherwise."""
    trajectory = random_trajectory()
    outputs = random_outputs(rule, trajectory, seed=1)
    where = ~trajectory.mask
    other = dataclasses.replace(trajectory, reward=jnp.where(where, 100.0, trajectory.reward))

    def normalized(rule, trajectory):
        targets, after = targets_of(rule, outputs, outputs, trajectory, rule.init({}))
        return targets.normalized_advantage[trajectory.mask], after.memory.advantage

    assert relative_difference(normalized(rule, trajectory), normalized(rule, other)) == 0
    if isinstance(rule, disco.AnchoredRule):
        published = dataclasses.replace(rule, masks_moments=False)
        assert relative_difference(normalized(published, trajectory), normalized(published, other))
    nothing = dataclasses.replace(trajectory, mask=jnp.zeros_like(trajectory.mask))
    targets, after = targets_of(rule, outputs, outputs, nothing, rule.init({}))
    assert relative_difference(after.memory.advantage, rule.init({}).memory.advantage) == 0
    assert bool(jnp.all(jnp.isfinite(targets.normalized_advantage)))
