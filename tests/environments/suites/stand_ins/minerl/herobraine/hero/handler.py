import abc


class Handler(abc.ABC):
    @abc.abstractmethod
    def to_string(self) -> str: ...

    def xml_template(self) -> str:
        raise NotImplementedError
