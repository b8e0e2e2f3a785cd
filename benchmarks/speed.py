"""Speed of discovery, evaluation, a rule's update, a meta-gradient and MuZero's search.

    python -m benchmarks.speed --what=discovery

- `discovery`: a meta-step of the published meta-training notebook (Catch 5x5, MLP 512-512, model
  LSTM and heads of 256, 32 trajectories of 16 steps, 32 validation trajectories of 32, Disco103's
  sizes): 2 agents, K = 2, on one device per core, as `launch.discover` runs it. The published code
  took 1.18 seconds, and 18 to compile (two cores).
- `evaluation`: an iteration (act, replay, update) of the published evaluation on Catch 8x8: 64
  replayed trajectories of 29 steps. The published code made about 5.8 iterations per second (two
  cores).
- `update`: one agent update by the published rule on Catch 8x8 (64 trajectories of 29 steps), and
  its network passes alone: the online network's forward pass, its backward pass from the outputs
  that the loss reads (with the rule's loss gradient as cotangent), and the target network's forward
  pass.
- `meta_gradient`: K updates of the notebook's agent on given batches, the meta-loss and the
  backward pass, for one agent: by reverse over reverse (`plain`: JAX differentiates the updates
  without rematerialisation), beside `meta.inner_loop` with the states of all updates (`one level`)
  or of about sqrt(K) (`two levels`).
- `search`: MuZero's search in 64 states of CartPole, 16 simulations each, by the laptop's model and
  by one of the paper preset's sizes. `gumbel` is what agents do (`agents.muzero`), `plain`
  is `mctx.muzero_policy` with the same model, and `model alone` steps the model and predicts as
  often as a search does: what remains is the tree's own time.

The compile times of the first two are of the step alone, from tracing to the program: first with an
empty persistent cache, then with the cache that this has filled.
"""

import dataclasses
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import mctx
from absl import app, flags

import disco
import environments
from agents.latent_model import LatentModel
from agents.muzero.algorithm import model_for_search, search
from agents.muzero.config import PAPER, MuZeroConfig
from agents.networks import NetworkConfig
from agents.rule_agent import RuleAgent, RuleAgentConfig, to_trajectory
from benchmarks.timing import compare, text, time_in_turn
from launch.support import commands
from meta import inner_loop
from meta.config import DiscoveryConfig, MetaConfig, ObjectiveConfig, PopulationConfig
from meta.estimators.meta_gradient import MetaGradient
from meta.objective import meta_loss, target_statistics
from training import collection, iteration

# The published meta-training notebook's agent, on Catch 5x5.
_AGENT = RuleAgentConfig(
    network=NetworkConfig(torso=(512, 512), model=256, head=(256,)),
    learning_rate=5e-4,
    num_environments=32,
    unroll_length=16,
    batch_size=32,
    replay_ratio=0.0,
)
_META = MetaConfig(num_updates=2, validation_trajectories=32, validation_length=32)
_STATES, _SIMULATIONS = 64, 16


def discovery() -> None:
    """Time a meta-step."""
    commands.use_all_cores()

    def make() -> tuple[Callable[[], Any], Callable[[Any], Callable]]:
        config = DiscoveryConfig(meta=_META, population=PopulationConfig(size=2), agent=_AGENT)
        run = MetaGradient(config, (environments.make("catch/5x5"),), _rule())

        def compile_step(state):
            run.compile()
            return lambda state: run.step(state)[0]

        return run.init, compile_step

    _time_steps(make)


def evaluation() -> None:
    """Time an iteration of training."""

    def make() -> tuple[Callable[[], Any], Callable[[Any], Callable]]:
        task, agent = _agent("catch/8x8", RuleAgentConfig(learning_rate=1e-2))

        def init():
            key, first = jax.random.key(0), jax.jit(partial(iteration.init, agent, task.dynamics))
            return key, agent, first(task.params, key)

        def iterate(carry):
            key, agent, state = carry
            key, update_key = jax.random.split(key)
            state, _, _ = iteration.advance(
                agent, task.dynamics, task.params, state, update_key, state.updates
            )
            return key, agent, state

        return init, lambda carry: jax.jit(iterate, donate_argnums=0).lower(carry).compile()

    _time_steps(make)


def _time_steps(make: Callable[[], tuple[Callable[[], Any], Callable[[Any], Callable]]]) -> None:
    """Print compile times, and the median and range of a step's time.

    `make` returns a function for an initial state, and one from that to a compiled step.
    """
    with tempfile.TemporaryDirectory() as cache:
        jax.config.update("jax_compilation_cache_dir", cache)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
        for name in ("cold", "warm"):
            init, compile_step = make()
            began = time.perf_counter()
            state = jax.block_until_ready(init())
            print(f"initial state, {name} cache: {time.perf_counter() - began:.1f} s", flush=True)
            began = time.perf_counter()
            program = compile_step(state)
            print(f"step compiled, {name} cache: {time.perf_counter() - began:.1f} s", flush=True)
            if name == "cold":
                jax.clear_caches()

        def step() -> Any:
            nonlocal state
            state = program(state)
            return state

        seconds = time_in_turn({"": step}, _REPEATS.value)[""]
    rate = 1 / statistics.median(seconds)
    print(f"a step: {text(seconds)}, {rate:.2f} a second, {jax.device_count()} devices")


def update() -> None:
    """Compare an update with its network passes."""
    task, agent = _agent("catch/8x8", RuleAgentConfig(num_environments=64, replay_ratio=0.0))
    rule: Any = agent.rule
    unroll, batch = agent.network.unroll, _batch(agent, task, agent.config.unroll_length)
    learner = jax.jit(agent.init)(jax.random.key(1))

    def learn(rule, learner, batch):
        return dataclasses.replace(agent, rule=rule).learn(learner, batch)[0]

    def network_only(learner, batch, cotangent):
        _, pull_back, outputs = jax.vjp(
            lambda p: rule._unroll(unroll, p, batch), learner.params, has_aux=True
        )
        target_outputs = rule._target_outputs(unroll, learner.rule_state.target_params, batch)
        return outputs, pull_back(cotangent), target_outputs

    loss_outputs, outputs = rule._unroll(unroll, learner.params, batch)
    targets, _ = rule.targets(outputs, outputs, batch, learner.rule_state)
    cotangent = jax.grad(lambda o: rule.output_loss(o, targets, batch)[0])(loss_outputs)
    cotangent = jax.tree.map(jnp.asarray, cotangent)
    programs = {
        "network only": (network_only, (learner, batch, cotangent)),
        "update": (learn, (rule, learner, batch)),
    }
    compare(programs, "network only", _REPEATS.value)


def meta_gradient() -> None:
    """Compare mixed-mode meta-gradients with reverse over reverse."""
    task, agent = _agent("catch/5x5", _AGENT)
    learner = jax.jit(agent.init)(jax.random.key(1))
    batches = _batch(agent, task, _AGENT.unroll_length, _NUM_UPDATES.value)
    validation = _batch(agent, task, _META.validation_length)
    advantage = jax.random.normal(jax.random.key(4), validation.action.shape)

    def loss_of(learner, statistics):
        outputs = agent.network.unroll(learner.params, validation)
        return meta_loss(ObjectiveConfig(), outputs, advantage, validation, statistics)[0]

    def plain(rule, learner, batches):
        def loss(rule):
            def step(learner, batch):
                learner, targets, logits = _plain_learn(agent, rule, learner, batch)
                return learner, target_statistics(targets, logits)

            return loss_of(*jax.lax.scan(step, learner, batches))

        return jax.value_and_grad(loss)(rule)

    def mixed(segment_length, rule, learner, batches):
        def step(learner, batch):
            learner, residuals, _ = inner_loop.update_with_residuals(
                dataclasses.replace(agent, rule=rule), learner, batch
            )
            return learner, residuals

        _, residuals = jax.lax.scan(step, learner, batches)

        def loss(rule):
            return loss_of(
                *inner_loop.differentiable_inner_loop(
                    agent, rule, learner, residuals, segment_length
                )
            )

        return jax.value_and_grad(loss)(rule)

    arguments = agent.rule, learner, batches
    programs = {
        "plain": (plain, arguments),
        "one level": (partial(mixed, _NUM_UPDATES.value), arguments),
        "two levels": (partial(mixed, None), arguments),
    }
    compare(programs, "plain", _REPEATS.value)


def _plain_learn(agent, rule, learner, batch):
    """Update a learner like `RuleAgent.learn`, without custom derivatives.

    Returns:
      The learner, the targets, and the target network's logits.
    """
    unroll, batch = agent.network.unroll, agent.config.scaled(batch)
    loss_outputs, pull_back, outputs = jax.vjp(
        lambda p: rule._unroll(unroll, p, batch), learner.params, has_aux=True
    )
    target_outputs = unroll(learner.rule_state.target_params, batch)
    targets, state = rule.targets(outputs, target_outputs, batch, learner.rule_state)
    output_gradient = jax.grad(lambda o: rule.output_loss(o, targets, batch)[0])(loss_outputs)
    (gradients,) = pull_back(output_gradient)
    state = rule._move_target_params(state, learner.params)
    aux = disco.Aux(state=state, targets=targets, metrics={})
    return agent.apply(learner, gradients, aux), targets, target_outputs["logits"]


def _batch(agent: RuleAgent, task: Any, length: int, *sizes: int) -> disco.Trajectory:
    """Return a batch of ones, of trajectories of a length; `sizes` are further leading axes."""
    example = collection.example(agent, task.dynamics, agent.config.batch_size, length)
    return jax.tree.map(lambda x: jnp.ones((*sizes, *x.shape), x.dtype), to_trajectory(example))


def muzero_search() -> None:
    """Compare MuZero's search with one without Gumbel noise, and with the model alone."""
    torso = NetworkConfig(torso=(512,), model=PAPER.network.model, head=PAPER.network.head)
    networks = {
        "laptop": (MuZeroConfig(), MuZeroConfig().network),
        "paper's model": (PAPER, torso),
    }
    for name, (config, network) in networks.items():
        dynamics = environments.make("gymnax/CartPole-v1").dynamics
        model = LatentModel(network, dynamics, num_bins=config.num_bins)
        embedding = jax.random.normal(jax.random.key(1), (_STATES, network.torso[-1]))
        arguments = model.init(jax.random.key(0)), embedding
        counts = {"num_simulations": _SIMULATIONS, "max_considered_actions": 16}
        functions = _searches(model, dataclasses.replace(config, **counts))
        print(f"{name}:")
        programs = {kind: (function, arguments) for kind, function in functions.items()}
        for kind, seconds in compare(programs, "plain", _REPEATS.value).items():
            rate = _STATES * _SIMULATIONS / statistics.median(seconds)
            print(f"{kind}: {rate:,.0f} simulations/s", flush=True)


def _searches(model: Any, config: MuZeroConfig) -> dict[str, Callable[[Any, Any], Any]]:
    """Return functions of parameters and embeddings: two searches, and the model's steps alone."""

    def gumbel(params: Any, embedding: Any) -> Any:
        return search(model, params, embedding, jax.random.key(2), config)

    def plain(params: Any, embedding: Any) -> Any:
        root, recurrent = model_for_search(model, params, embedding, config)
        with jax.numpy_dtype_promotion("standard"):
            key = jax.random.key(2)
            return mctx.muzero_policy(params, key, root, recurrent, _SIMULATIONS).action

    def alone(params: Any, embedding: Any) -> Any:
        root, recurrent = model_for_search(model, params, embedding, config)
        action = jnp.zeros(_STATES, jnp.int32)

        def step(state, _):
            output, state = recurrent(params, jax.random.key(0), action, state)
            return state, output.value

        return jax.lax.scan(step, root.embedding, None, _SIMULATIONS)[1]

    return {"plain": plain, "gumbel": gumbel, "model alone": alone}


def _rule() -> disco.DiscoveredRule:
    return disco.DiscoveredRule.create(jax.random.key(0))


def _agent(name: str, config: RuleAgentConfig) -> tuple[Any, RuleAgent]:
    task = environments.make(name)
    return task, RuleAgent.create(config, task.dynamics, _rule())


_BENCHMARKS = {
    "discovery": discovery,
    "evaluation": evaluation,
    "update": update,
    "meta_gradient": meta_gradient,
    "search": muzero_search,
}
_WHAT = flags.DEFINE_enum("what", "discovery", list(_BENCHMARKS), "What to time.")
_REPEATS = flags.DEFINE_integer("repeats", 20, "Timed steps or calls.", lower_bound=1)
_NUM_UPDATES = flags.DEFINE_integer("num_updates", 20, "K of meta_gradient.", lower_bound=1)


def main(argv: list[str]) -> None:
    """Run one of the benchmarks."""
    del argv
    _BENCHMARKS[_WHAT.value]()


if __name__ == "__main__":
    app.run(main)
