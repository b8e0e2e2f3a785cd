"""Runs of Dreamer and IRIS that earlier versions made, whose settings had a switch for each bit."""

import dataclasses

import pytest

from agents import registry

# As commit 5c30dd0 stored them, with `dreamer` and `iris`; what `dreamer/v1` had instead.
DREAMER = dict(
    **dict(deterministic=512, hidden=64, latents=32, classes=4, blocks=8, units=64, depth=4),
    **dict(layers=3, head_layers=1, norm="rms", architecture="nature", convolutions="pooled"),
    **dict(unimix=0.01, policy_unimix=0.01, regression="symexp_twohot", bins=255),
    **dict(symlog_vectors=True, free_nats=0.3, reconstruction_cost=1.0, vector_cost=10.0),
    **dict(reward_cost=1.0, continue_cost=1.0, dynamics_cost=1.0, representation_cost=0.1),
    **dict(target_kl=0.0, horizon=15, imagine_last=8, discount_horizon=333.0),
    **dict(learns_discount=True, recorded_first_weight=False, lambda_=0.95, entropy_cost=0.1),
    **dict(target_randomness=0.0, return_norm="range", least_norm=1.0, return_norm_decay=0.99),
    **dict(reward_norm=False, dynamics_gradients=False, actor_cost=1.0, critic_cost=1.0),
    **dict(critic_replay_cost=0.3, slow_target=False, slow_critic_cost=1.0),
    **dict(slow_critic_decay=0.98, optimizer="laprop", learning_rate=0.001),
    **dict(actor_critic_learning_rate=0.001, warmup=100, rms_decay=0.999, batch_size=8),
    **dict(batch_length=16, online_queue=True, stored_latents=True, stored_dtype="float32"),
    **dict(replay_capacity=5000000, replay_ratio=32.0, num_environments=8, image_side=64),
    **dict(image_channels=3, prefill=64, dtype="auto"),
)
V1 = DREAMER | dict(
    **dict(deterministic=256, classes=8, blocks=1, depth=8, layers=1, norm="layer"),
    **dict(architecture="v1", regression="symlog_twohot", dynamics_cost=0.5),
    **dict(learns_discount=False, dynamics_gradients=True, critic_replay_cost=0.0),
    **dict(optimizer="adam", online_queue=False, stored_latents=False, replay_capacity=1000000),
)
IRIS = dict(
    **dict(vocabulary=32, code_size=32, latent_channels=32, channels=32, groups=8, patch=16),
    **dict(tile=16, multipliers=[1], residual_blocks=1, attention_resolutions=[]),
    **dict(commitment_cost=1.0, squared_cost=10.0, revival_updates=400, perceptual_file=""),
    **dict(memory_steps=5, layers=2, heads=4, width=64, dropout=0.0, actor_patch=4),
    **dict(actor_channels=[32, 32], lstm_size=64, horizon=5, learns_after_end=False, burn_in=4),
    **dict(discount=0.97, lambda_=0.95, entropy_cost=0.01, temperature=1.0, epsilon=0.01),
    **dict(evaluation_temperature=0.5, learning_rate=0.001, tokenizer_decay_updates=1600),
    **dict(weight_decay=0.01, max_gradient_norm=10.0, tokenizer_batch=16, world_model_batch=8),
    **dict(actor_critic_batch=16, epoch_steps=64, epoch_updates=16, tokenizer_start=2),
    **dict(world_model_start=28, actor_critic_start=160, ends_at_life_loss=True),
    **dict(replay_capacity=20000, num_environments=8),
)


@pytest.mark.parametrize(
    ("name", "stored"),
    [
        ("dreamer", DREAMER),
        ("dreamer/v1", V1),
        ("dreamer/NoFreeBits", DREAMER | dict(free_nats=0.0)),
        ("dreamer/horizon=5", DREAMER | dict(horizon=5)),
        ("dreamer/paper", DREAMER | dict(by_task=dict(crafter=DREAMER | dict(replay_ratio=7.0)))),
        ("iris", IRIS),
        ("iris/horizon=3", IRIS | dict(horizon=3)),
    ],
)
def test_a_run_has_its_settings(name, stored):
    algorithm, _, parameters = name.partition("/")
    found = registry.find(algorithm).restored(stored, parameters)
    for field, value in dataclasses.asdict(found.config).items():
        if field in stored:
            assert value == (tuple(x) if isinstance(x := stored[field], list) else x), field
    named = registry.configured(name)
    if not parameters:  # The same preset.
        assert found == named
    for field in ("version", "ablation", "tile"):
        assert getattr(found.config, field, None) == getattr(named.config, field, None)
    if "by_task" in stored:
        assert found.by_task["crafter"].replay_ratio == 7.0
    assert registry.find(algorithm).restored(found.settings, parameters) == found


@pytest.mark.parametrize(
    ("name", "stored", "message"),
    [
        ("dreamer/paper", DREAMER | dict(convolutions="strided"), "convolutions 'strided', which"),
        ("dreamer", DREAMER | dict(lambda_=0.9), "with lambda_ 0.9, which is gone; expected 0.95"),
        ("iris", IRIS | dict(epsilon=0.1), "with epsilon 0.1, which is gone; expected 0.01"),
        ("dreamer", V1, "with architecture 'v1', which is gone; expected 'nature'"),
        ("dreamer", DREAMER | dict(hidden=128), "hidden 128, which is gone; expected 64"),
        ("iris", IRIS | dict(patch=1), "with patch 1, which is gone; expected 16"),
    ],
)
def test_a_run_of_an_agent_that_is_gone_is_refused(name, stored, message):
    algorithm, _, parameters = name.partition("/")
    with pytest.raises(ValueError, match=message):
        registry.find(algorithm).restored(stored, parameters)
