from minerl.herobraine.hero import spaces
from minerl.herobraine.hero.handler import Handler


class _Named(Handler):
    name: str
    space: object

    def to_string(self):
        return self.name


class POVObservation(_Named):
    name = "pov"

    def __init__(self, video_resolution, include_depth=False):
        self.space = spaces.Box(video_resolution, 255)


class FlatInventoryObservation(_Named):
    name = "inventory"

    def __init__(self, item_list, _other="other"):
        self.space = spaces.Dict({item: spaces.Box(1, 2304) for item in sorted(item_list)})


class EquippedItemObservation(_Named):
    name = "equipped_items"

    def __init__(self, items, mainhand=True, offhand=False, _default="none", _other="other"):
        for item in (_other, _default):
            if item not in items:
                items.append(item)
        hand = spaces.Dict({"type": spaces.Enum(*items, default=_default)})
        self.space = spaces.Dict({"mainhand": hand})


class ObservationFromLifeStats(_Named):
    name = "life_stats"
    space = spaces.Dict({name: spaces.Box(1, 300) for name in ("life", "food", "air")})


class KeybasedCommandAction(_Named):
    def __init__(self, command, *keys):
        self.name, self.space = command, spaces.Key()


class CameraAction(_Named):
    name = "camera"

    def __init__(self):
        self.space = spaces.Box(2, 180)


class _Chooser(_Named):
    def __init__(self, items, _default, _other):
        if _default not in items or _other not in items:
            raise AssertionError(f"{_default!r} and {_other!r} must be in {items}")
        self.space = spaces.Enum(*items, default=_default)


class PlaceBlock(_Chooser):
    name = "place"


class EquipAction(_Chooser):
    name = "equip"


class CraftAction(_Chooser):
    name = "craft"


class CraftNearbyAction(_Chooser):
    name = "nearbyCraft"


class SmeltItemNearby(_Chooser):
    name = "nearbySmelt"


class DefaultWorldGenerator(_Named):
    name = "default_world_generator"

    def __init__(self, force_reset=True, generator_options="{}"):
        self.force_reset = force_reset


class TimeInitialCondition(_Named):
    name = "time_initial_condition"

    def __init__(self, allow_passage_of_time, start_time=None):
        self.allow_passage_of_time, self.start_time = allow_passage_of_time, start_time


class SpawningInitialCondition(_Named):
    name = "spawning_initial_condition"

    def __init__(self, allow_spawning):
        self.allow_spawning = allow_spawning


class ServerQuitWhenAnyAgentFinishes(_Named):
    name = "server_quit_when_any_agent_finishes"
