import abc

from minerl.herobraine.hero import handlers
from minerl.toy_world import ToyWorld

KEYS = ("forward", "back", "left", "right", "jump", "sneak", "sprint", "attack")


class SimpleEmbodimentEnvSpec(abc.ABC):
    def __init__(self, name, *args, resolution=(64, 64), **kwargs):
        self.name, self.resolution = name, resolution

    def create_observables(self):
        return [handlers.POVObservation(self.resolution)]

    def create_actionables(self):
        keys = [handlers.KeybasedCommandAction(key, "0") for key in KEYS]
        return [*keys, handlers.CameraAction()]

    @abc.abstractmethod
    def create_rewardables(self): ...

    @abc.abstractmethod
    def create_agent_start(self): ...

    @abc.abstractmethod
    def create_agent_handlers(self): ...

    @abc.abstractmethod
    def create_monitors(self): ...

    @abc.abstractmethod
    def create_server_initial_conditions(self): ...

    @abc.abstractmethod
    def create_server_decorators(self): ...

    @abc.abstractmethod
    def create_server_world_generators(self): ...

    @abc.abstractmethod
    def create_server_quit_producers(self): ...

    @abc.abstractmethod
    def is_from_folder(self, folder): ...

    @abc.abstractmethod
    def determine_success_from_rewards(self, rewards): ...

    @abc.abstractmethod
    def get_docstring(self): ...

    def make(self):
        return ToyWorld(self)
