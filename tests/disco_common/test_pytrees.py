"""Dataclasses as pytrees: their class is part of the structure."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import disco
import environments
from agents.dice.algorithm import DiceAgent
from agents.dice.config import DiceConfig
from agents.muesli.algorithm import MuesliAgent
from agents.muesli.config import MuesliConfig
from agents.muzero.algorithm import MuZeroAgent
from agents.muzero.config import MuZeroConfig
from agents.ppo.algorithm import PPOAgent
from agents.ppo.config import PPOConfig
from agents.rule_agent import RuleAgent, RuleAgentConfig
from disco_common.pytrees import register_dataclass


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Scaled:
    weight: jax.Array
    name: str = dataclasses.field(metadata={"static": True})
    offset: Any = None

    def __call__(self, x):
        return self.weight * x


@register_dataclass
class Squared(Scaled):
    def __call__(self, x):
        return self.weight * x**2


def test_children_and_static_fields():
    node = Scaled(jnp.ones(2), "a", jnp.zeros(()))
    leaves = jax.tree.leaves_with_path(node)
    assert [jax.tree_util.keystr(path) for path, _ in leaves] == [".weight", ".offset"]
    assert leaves[0][1] is node.weight
    again = jax.tree.map(lambda x: x + 1.0, node)
    assert isinstance(again, Scaled)
    assert again.name == "a"
    assert (again.weight.tolist(), again.offset.tolist()) == ([2.0, 2.0], 1.0)
    structure = jax.tree.structure(node)
    assert structure == jax.tree.structure(again)
    assert structure != jax.tree.structure(dataclasses.replace(node, name="b"))
    assert structure != jax.tree.structure(dataclasses.replace(node, offset=None))


def test_a_subclass_has_its_own_program():
    apply = jax.jit(lambda node, x: node(x))
    for kind, expected in ((Scaled, 6.0), (Squared, 18.0), (Scaled, 6.0)):
        assert float(apply(kind(jnp.array(2.0), "a"), 3.0)) == expected


CATCH = environments.make("catch/5x5").dynamics
AGENTS = {
    "ppo": lambda: PPOAgent.create(PPOConfig(), CATCH),
    "dice": lambda: DiceAgent.create(DiceConfig(), CATCH),
    "muesli": lambda: MuesliAgent.create(MuesliConfig(), CATCH),
    "muzero": lambda: MuZeroAgent.create(MuZeroConfig(), CATCH),
    "rule": lambda: RuleAgent.create(RuleAgentConfig(), CATCH, disco.ActorCritic()),
}
RULES = {
    name: functools.partial(disco.hand_designed, name) for name in ("actor_critic", "hand_set")
}


@pytest.mark.parametrize("register", [register_dataclass, jax.tree_util.register_dataclass])
@pytest.mark.parametrize("make", [*AGENTS.values(), *RULES.values()], ids=[*AGENTS, *RULES])
def test_a_subclass_of_an_agent_or_a_rule_has_another_structure(make, register):
    node = make()
    other = register(type("Other", (type(node),), {}))
    fields = {x.name: getattr(node, x.name) for x in dataclasses.fields(node)}
    assert jax.tree.structure(other(**fields)) != jax.tree.structure(node)
    assert jax.tree.structure(make()) == jax.tree.structure(node)


def test_agents_whose_rules_are_of_different_classes_have_different_structures():
    agent = AGENTS["rule"]()
    other = dataclasses.replace(agent, rule=disco.PolicyGradient())
    assert jax.tree.structure(other) != jax.tree.structure(agent)
