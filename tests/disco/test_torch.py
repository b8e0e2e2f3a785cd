"""Rules as losses of PyTorch agents."""

import copy
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import disco
from agents.optimizers import agent_optimizer
from tests.annotations import unchecked
from tests.disco.test_golden import (
    OUTPUTS,
    _sequence_tolerance,
    _targets_tolerance,
)
from tests.golden import (
    Case,
    disco103,
    golden_cases,
    prefixed,
    read_memory,
    read_tree,
    rollout_trajectory,
    transition_trajectory,
    write_memory,
    write_tree,
)

torch: Any = pytest.importorskip("torch")
bridge: Any = pytest.importorskip("disco.torch")


# Of the case's names, the fields of `disco.DiscoveredTargets`.
TARGETS = {name: name for name in ("pi", "y", "z", "q_target", "q_td", "normalized_q_td")} | {
    "meta_input_emb": "summary",
    "adv": "advantage",
    "normalized_adv": "normalized_advantage",
}


def tensor(array) -> Any:
    return torch.from_numpy(np.array(array))


def tensors(trajectory: disco.Trajectory) -> Any:
    return bridge.Trajectory(
        **{name: tensor(getattr(trajectory, name)) for name in bridge.Trajectory._fields}
    )


def with_memory(rule: disco.Rule, memory: Any) -> Any:
    """The rule's loss, in the middle of an agent's lifetime."""
    module = bridge.RuleLoss(rule)
    module.set_extra_state([tensor(leaf) for leaf in jax.tree.leaves(memory)])
    return module


def memory_of(module: Any) -> Any:
    leaves = [jnp.asarray(leaf.numpy()) for leaf in module.get_extra_state()]
    return jax.tree.unflatten(jax.tree.structure(module.rule.init_memory()), leaves)


@golden_cases("rule_targets", rest="slow")
def test_golden_rule_targets(case: Case):
    with case.computing():
        rule = disco103(case.attrs["hyper"])
        given = case.inputs()
        outputs = {name: tensor(given[f"agent/{name}"]) for name in OUTPUTS}
        target_outputs = outputs | {n: tensor(given[f"target/{n}"]) for n in OUTPUTS[:-1]}
        module = with_memory(rule, read_memory(given))
        arguments = outputs, target_outputs, tensors(transition_trajectory(given))
        targets = module.targets(*arguments)
        module(*arguments)
        actual = {
            **{name: getattr(targets, ours).numpy() for name, ours in TARGETS.items()},
            **write_memory(memory_of(module)),
        }
    check_some(case, actual, _targets_tolerance)


def check_some(case: Case, actual: Mapping[str, Any], tolerance) -> None:
    """As `case.check`, for those of the expected arrays that there are."""
    expected = {name: x for name, x in case.expected().items() if name in actual}
    assert expected.keys() == actual.keys()
    patched = pytest.MonkeyPatch()
    with patched.context() as patch:
        patch.setattr(Case, "expected", lambda self: expected)
        case.check(actual, tolerance)


class LinearAgent(torch.nn.Module):
    """The linear agent of the kind `rule_sequence`."""

    def __init__(self, params: Mapping[str, Mapping[str, jax.Array]], num_actions: int):
        super().__init__()
        self.num_actions = num_actions
        for name, head in params.items():
            for part, value in head.items():
                self.register_parameter(f"{name}_{part}", torch.nn.Parameter(tensor(value)))

    def forward(self, observation):
        outputs = {}
        for name in OUTPUTS:
            w, b = self.get_parameter(f"{name}_w"), self.get_parameter(f"{name}_b")
            rows = observation @ w + b
            if name in ("z", "q", "aux_pi"):
                rows = rows.reshape(*rows.shape[:2], self.num_actions, -1)
            outputs[name] = rows
        return outputs

    def tree(self, of=lambda parameter: parameter.detach()):
        found: dict[str, dict[str, np.ndarray]] = {}
        for name, parameter in self.named_parameters():
            head, part = name.rsplit("_", 1)
            found.setdefault(head, {})[part] = of(parameter).numpy().copy()
        return found


@golden_cases("rule_sequence", rest="slow")
def test_golden_rule_sequence(case: Case):
    """Losses, gradients, parameters, target parameters and memory of some updates in a row."""
    with case.computing():
        given = case.inputs()
        module = with_memory(disco103(case.attrs["hyper"]), read_memory(given))
        params: Any = read_tree(given, "params")
        num_actions = given["batches/behaviour_logits"].shape[-1]
        agent = LinearAgent(params, num_actions)
        target = copy.deepcopy(agent)
        optimizer = agent_optimizer(case.attrs["lr"])
        state: Any = optimizer.init(params)
        actual = {}
        for step in range(case.attrs["n"]):
            batch = rollout_trajectory(
                {
                    name.removeprefix("batches/"): x[step]
                    for name, x in given.items()
                    if name.startswith("batches/")
                }
            )
            observation = tensor(batch.observation)
            with torch.no_grad():
                target_outputs = target(observation)
            agent.zero_grad()
            arguments = agent(observation), target_outputs, tensors(batch)
            targets = module.targets(*arguments)
            loss = module(*arguments)
            loss.backward()
            gradients = jax.tree.map(jnp.asarray, agent.tree(lambda parameter: parameter.grad))
            module.move_target(target, agent)
            updates, state = optimizer.update(gradients, state, params)
            params = optax.apply_updates(params, updates)
            agent = LinearAgent(params, num_actions)
            written = {
                **write_tree(params, "params"),
                **write_tree(target.tree(), "target_params"),
                **write_memory(memory_of(module)),
                "log/total_loss": loss.detach().numpy(),
                "log/global_gradient_norm": optax.tree.norm(gradients),
                "targ/pi": targets.pi.numpy(),
                "targ/adv": targets.advantage.numpy(),
            }
            actual |= prefixed(written, f"step{step + 1}")
    expected = case.expected()
    check_some(case, actual, lambda name: _sequence_tolerance(name, expected))


A, T, B = 3, 5, 2
RULES = {
    "three_families": lambda: disco.load("three_families"),
    "grid57": lambda: disco.load("grid57"),
    "actor_critic": disco.ActorCritic,
    "hand_set": disco.HandSetRule,
}


def batch(rule: disco.Rule, seed: int = 0):
    """Outputs, target outputs and a trajectory of random numbers."""
    random = np.random.default_rng(seed)

    def outputs():
        return {
            name: random.normal(size=(T + 1, B, *shape)).astype(np.float32)
            for name, shape in rule.output_shapes(A).items()
        }

    last: Any = random.random((T, B)) < 0.3
    mask: Any = random.random((T, B)) < 0.8

    def normal(*shape) -> Any:
        return random.normal(size=shape).astype(np.float32)

    action: Any = random.integers(A, size=(T, B), dtype=np.int32)
    discount: Any = 1.0 - last.astype(np.float32)
    return (
        outputs(),
        None if rule.target_params_coefficient is None else outputs(),
        disco.Trajectory(
            observation=(),
            action=action,
            reward=normal(T, B),
            discount=discount,
            last=last,
            behaviour_logits=normal(T, B, A),
            mask=mask,
        ),
    )


def leaves(outputs, dtype=None) -> Any:
    found = {name: tensor(x).to(dtype) for name, x in outputs.items()}
    return {name: x.requires_grad_() for name, x in found.items()}


def fixed(outputs) -> Any:
    return None if outputs is None else {name: tensor(x) for name, x in outputs.items()}


@pytest.mark.parametrize("name", RULES)
def test_the_loss_and_its_gradient_are_those_in_jax(name):
    rule = RULES[name]()
    module, memory = bridge.RuleLoss(rule), rule.init_memory()
    gradient_of = jax.jit(lambda *x: rule.gradient(*x, lambda p, _: p))
    for seed in range(3):
        outputs, target_outputs, trajectory = batch(rule, seed)
        state = disco.RuleState(target_params=target_outputs, memory=memory)
        gradients, aux = gradient_of(outputs, state, trajectory)
        memory = aux.state.memory
        found = leaves(outputs)
        loss = module(found, fixed(target_outputs), tensors(trajectory))
        (3.0 * loss).backward()
        np.testing.assert_allclose(loss.item(), aux.metrics["loss"], rtol=1e-5)
        for key, gradient in gradients.items():
            assert np.abs(gradient).max() > 0
            np.testing.assert_allclose(found[key].grad, 3.0 * gradient, rtol=1e-4, atol=1e-7)
        for ours, theirs in zip(module.get_extra_state(), jax.tree.leaves(memory), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5)


@pytest.mark.parametrize("name", ["grid57", "actor_critic", "hand_set"])
def test_illegal_actions_have_no_part(name):
    """Their logits are -inf in all three policies."""
    rule = RULES[name]()
    outputs, target_outputs, trajectory = batch(rule)
    found, target, given = leaves(outputs), fixed(target_outputs), tensors(trajectory)
    forbidden = torch.zeros(T + 1, B, A, dtype=torch.bool)
    forbidden[:-1].scatter_(2, (given.action.long()[..., None] + 1) % A, True)
    for policies in (found, target) if target else (found,):
        policies["logits"] = policies["logits"].masked_fill(forbidden, -torch.inf)
    found["logits"].retain_grad()
    given = given._replace(
        behaviour_logits=given.behaviour_logits.masked_fill(forbidden[:-1], -torch.inf)
    )
    module = bridge.RuleLoss(rule)
    loss = module(found, target, given)
    loss.backward()
    assert all(x.isfinite().all() for x in (loss, *(x.grad for x in found.values())))
    assert all(np.isfinite(list(module.metrics.values())))
    assert not found["logits"].grad[forbidden].any()
    if hasattr(module.targets(found, target, given), "pi"):
        policy = torch.softmax(module.targets(found, target, given).pi, -1)
        assert not policy[forbidden[:-1]].any()
    module.check_values(found, target, given)


def test_wrong_values_are_noticed():
    rule = RULES["hand_set"]()
    outputs, target_outputs, trajectory = batch(rule)
    given = fixed(outputs), fixed(target_outputs), tensors(trajectory)
    module = bridge.RuleLoss(rule)
    module.check_values(*given)
    with_gamma = given[2]._replace(discount=0.5 * given[2].discount)
    with pytest.raises(ValueError, match=r"discount has 0\.5 at.*gamma is the rule's"):
        module.check_values(*given[:2], with_gamma)
    not_a_number = {"q": torch.full_like(given[1]["q"], torch.nan)}
    with pytest.raises(ValueError, match="'q' has nan at"):
        module.check_values(given[0], {**given[1], **not_a_number}, given[2])
    with pytest.raises(ValueError, match=r"outputs lack \['q'\]"):
        module.check_values({"logits": given[0]["logits"]}, *given[1:])
    module.eval()
    with pytest.raises(ValueError, match="in evaluation mode, in which its memory stays"):
        module.check_values(*given)


def test_other_dtypes_and_memory_layouts():
    """64-bit integers and floats, half precision, and tensors that are not contiguous."""
    rule = RULES["three_families"]()
    outputs, target_outputs, trajectory = batch(rule)
    plain = tensors(trajectory)
    expected = bridge.RuleLoss(rule)(leaves(outputs), fixed(target_outputs), plain)
    wide = leaves(outputs, torch.float64)
    turned = plain._replace(
        action=plain.action.long(),
        behaviour_logits=plain.behaviour_logits.transpose(0, 2).contiguous().transpose(0, 2),
    )
    loss = bridge.RuleLoss(rule)(wide, fixed(target_outputs), turned)
    torch.testing.assert_close(loss, expected)
    loss.backward()
    assert {x.grad.dtype for x in wide.values()} == {torch.float64}
    half = leaves(outputs, torch.bfloat16)
    loss = bridge.RuleLoss(rule)(half, fixed(target_outputs), plain)
    loss.backward()
    torch.testing.assert_close(loss, expected, rtol=0.05, atol=0.01)
    assert {x.grad.dtype for x in half.values()} == {torch.bfloat16}


def test_the_memory_is_saved_and_kept_in_evaluation(tmp_path):
    rule = RULES["grid57"]()
    outputs, target_outputs, trajectory = batch(rule)
    arguments = fixed(outputs), fixed(target_outputs), tensors(trajectory)
    module = bridge.RuleLoss(rule)
    assert not list(module.parameters())
    first = module.state_dict()
    module.eval()
    loss = module(*arguments)
    torch.testing.assert_close(module.state_dict(), first)
    module.train()
    torch.testing.assert_close(module(*arguments), loss)
    state = module.state_dict()
    (name,) = first
    kept = bridge.RuleLoss(rule)
    kept.load_state_dict(state)
    before = [x.clone() for x in kept.get_extra_state()]
    for x in state[name]:
        x.fill_(99.0)
    torch.testing.assert_close(kept.get_extra_state(), before)
    policy = module.targets(*arguments).pi
    policy.fill_(7.0)
    assert not torch.equal(module.targets(*arguments).pi, policy)
    assert any(
        not torch.equal(*x) for x in zip(module.state_dict()[name], first[name], strict=True)
    )
    file = tmp_path / "state.pt"
    torch.save(module.state_dict(), file)
    other = bridge.RuleLoss(rule)
    other.load_state_dict(torch.load(file, weights_only=True))
    torch.testing.assert_close(other(*arguments), copy.deepcopy(module)(*arguments))


def test_a_later_change_of_tensors_changes_no_gradient():
    """The memory that both libraries share is not read after the call."""
    rule = RULES["three_families"]()
    outputs, target_outputs, trajectory = batch(rule)
    gradients = []
    for damages in (False, True):
        found, given = leaves(outputs), tensors(trajectory)
        loss = bridge.RuleLoss(rule)(found, fixed(target_outputs), given)
        if damages:
            given.reward.fill_(1e6)
        loss.backward()
        gradients.append({name: x.grad for name, x in found.items()})
    torch.testing.assert_close(*gradients, rtol=0.0, atol=0.0)


@unchecked()
def test_clear_errors():
    rule = RULES["three_families"]()
    outputs, target_outputs, trajectory = batch(rule)
    good = fixed(outputs), fixed(target_outputs), tensors(trajectory)
    module = bridge.RuleLoss(rule)
    missing = {name: x for name, x in good[0].items() if name != "q"}
    with pytest.raises(ValueError, match="'q'"):
        module(missing, *good[1:])
    with pytest.raises(ValueError, match="target_outputs is None"):
        module(good[0], None, good[2])
    with pytest.raises(ValueError, match=r"trajectory.reward has shape \(4, 2\)"):
        module(*good[:2], good[2]._replace(reward=good[2].reward[1:]))
    with pytest.raises(ValueError, match=r"trajectory\.mask"):
        module(*good[:2], good[2]._replace(mask=good[2].reward))
    module.move_target(copy.deepcopy(module), module)  # Whose state has more than tensors.
    agents = torch.nn.Linear(2, 3), torch.nn.Linear(3, 3)
    with pytest.raises(ValueError, match=r"'weight': \(3, 2\).*expected the agent's"):
        module.move_target(*agents)
    with pytest.raises(ValueError, match="ActorCritic has no target network"):
        bridge.RuleLoss(disco.ActorCritic()).move_target(agents[0], agents[0])
    with pytest.raises(ValueError, match="a memory with arrays of"):
        module.load_state_dict(bridge.RuleLoss(disco.load("grid57")).state_dict())
    found = leaves(outputs)
    loss = module(found, *good[1:])
    (gradient,) = torch.autograd.grad(loss, [found["logits"]], create_graph=True)
    with pytest.raises(RuntimeError, match="does not require grad"):
        gradient.sum().backward()
