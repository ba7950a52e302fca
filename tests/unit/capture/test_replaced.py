"""What otel-fr replaces of other code, and its mirror."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from otel_fr.capture import compilations
from otel_fr.capture.replaced import C10D, PACKAGE, Attribute, Replacements


def made(name: str, **values: Any) -> ModuleType:
    module = ModuleType(name)
    vars(module).update(values)
    return module


def destroy() -> str:
    return "destroyed"


def wrapped(original: Any) -> Any:
    return lambda: f"ours, {original()}"


@pytest.fixture
def c10d() -> ModuleType:
    class Work:
        def wait(self) -> str:
            return "waited"

    return made(C10D, destroy_process_group=destroy, Work=Work)


def test_a_function_is_replaced_also_where_it_was_imported(c10d: ModuleType) -> None:
    package, other = made(PACKAGE, destroy_process_group=destroy), made("other", destroy_process_group=wrapped(destroy))
    its_own = other.destroy_process_group
    replaced = Replacements()
    assert replaced.put(Attribute.DESTROY, c10d, wrapped, package, other, None)
    assert c10d.destroy_process_group() == package.destroy_process_group() == "ours, destroyed"
    assert other.destroy_process_group is its_own
    replaced.undo()
    assert c10d.destroy_process_group is package.destroy_process_group is destroy


def test_what_was_put_above_another_one_is_undone_first(c10d: ModuleType) -> None:
    original = vars(c10d.Work)["wait"]
    replaced = Replacements()
    replaced.put(Attribute.WAIT, c10d, lambda wait: lambda work: f"a, {wait(work)}")
    replaced.put(Attribute.WAIT, c10d, lambda wait: lambda work: f"b, {wait(work)}")
    assert c10d.Work().wait() == "b, a, waited"
    replaced.undo()
    assert vars(c10d.Work)["wait"] is original


def test_what_others_have_replaced_meanwhile_stays(c10d: ModuleType) -> None:
    replaced = Replacements()
    replaced.put(Attribute.DESTROY, c10d, wrapped)
    theirs = wrapped(c10d.destroy_process_group)
    vars(c10d)[Attribute.DESTROY.path] = theirs
    replaced.undo()
    assert c10d.destroy_process_group is theirs
    replaced.undo()


@pytest.mark.parametrize("attribute", [one for one in Attribute if one.module not in ("sys", "threading")])
def test_a_module_without_the_attribute_is_left_as_it_is(attribute: Attribute) -> None:
    module = made(attribute.module)
    before = dict(vars(module))
    replaced = Replacements()
    assert not replaced.put(attribute, module, wrapped)
    replaced.undo()
    assert vars(module) == before


def test_what_cannot_be_made_replaces_nothing(c10d: ModuleType) -> None:
    def fail(original: Any) -> Any:
        raise ValueError(original)

    replaced = Replacements()
    with pytest.raises(ValueError, match="destroy"):
        replaced.put(Attribute.DESTROY, c10d, fail)
    assert c10d.destroy_process_group is destroy


def test_callbacks_of_others_outlast_the_list_that_holds_them() -> None:
    class Handler:
        start_callbacks: list[Any]

    handler = Handler()
    original = handler.start_callbacks = [print]
    module = made("torch._dynamo.callback", callback_handler=handler)
    replaced = Replacements()
    replaced.put(Attribute.COMPILATIONS, module, compilations.with_note, give_back=compilations.give_back)
    handler.start_callbacks.append(len)
    assert handler.start_callbacks == [print, compilations.note, len]
    replaced.undo()
    assert handler.start_callbacks is original
    assert original == [print, len]
