"""SQLAlchemy's own version counter, and its classes in the place of names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy import Integer, String
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from holdfast import optimistic, sql
from holdfast.errors import Conflict, InvalidArgument, Unsupported


class Base(DeclarativeBase):
    pass


class Invoice(Base):
    __tablename__ = "in.voice"
    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    total: Mapped[int] = mapped_column(Integer)
    revision: Mapped[int] = mapped_column("rev", Integer, nullable=False)
    __mapper_args__ = {"version_id_col": revision}  # noqa: RUF012 - as SQLAlchemy wants it


class Stamped(Base):
    __tablename__ = "stamped"
    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    stamp: Mapped[str] = mapped_column(String, nullable=False)
    __mapper_args__ = {"version_id_col": stamp, "version_id_generator": lambda last: (last or "") + "x"}  # noqa: RUF012 - as above


class MadeByDatabase(Base):
    __tablename__ = "made_by_database"
    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    stamp: Mapped[int] = mapped_column(Integer, nullable=False)
    __mapper_args__ = {"version_id_col": stamp, "version_id_generator": False}  # noqa: RUF012 - as above


@pytest.fixture
def engine(tmp_path: Any) -> Iterator[Any]:
    engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path}/shop.db", poolclass=sqlalchemy.NullPool)
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        session.add(Invoice(id=1, total=100))
        session.add(Stamped(id=1))
        session.commit()
    yield engine
    engine.dispose()


def test_the_counter_of_the_class_is_the_one_compared(engine: Any) -> None:
    with Session(engine) as session:
        assert optimistic.compare_and_update(session, Invoice, {"id": 1}, 1, {"total": 110}) == 2
        with pytest.raises(Conflict, match="has version 2"):
            optimistic.compare_and_update(session, Invoice, {"id": 1}, 1, {"total": 0})
        session.commit()
        invoice = session.get_one(Invoice, 1)
        assert (invoice.total, invoice.revision) == (110, 2)
        assert optimistic.compare_and_update(session, Stamped, {"id": 1}, "x", {}) == "xx"
        with pytest.raises(Unsupported, match="version_id_generator=False"):
            optimistic.compare_and_update(session, MadeByDatabase, {"id": 1}, 1, {})


def test_what_the_session_has_not_sent_yet_is_sent_first(engine: Any) -> None:
    with Session(engine) as session:
        session.get_one(Invoice, 1).total = 7
        with pytest.raises(Conflict):
            optimistic.compare_and_update(session, Invoice, {"id": 1}, 1, {"total": 8})


def test_a_row_is_locked_with_the_changes_that_were_not_sent_yet(engine: Any) -> None:
    with Session(engine) as session:
        session.get_one(Invoice, 1).total = 7
        assert sql.row_lock(session, Invoice, {"id": 1}) == {"id": 1, "total": 7, "rev": 2}


def test_a_stale_object_is_a_conflict_that_is_run_again(engine: Any) -> None:
    tries: list[int] = []

    @optimistic.optimistic(retries=3, backoff=0)
    def add() -> None:
        with Session(engine) as session:
            invoice = session.get_one(Invoice, 1)
            total = invoice.total
            session.commit()
            invoice = session.get_one(Invoice, 1)
            tries.append(1)
            if len(tries) == 1:
                session.expunge(invoice)
                session.rollback()
                with Session(engine) as other:
                    other.get_one(Invoice, 1).total = 50
                    other.commit()
                session.add(invoice)
            invoice.total = total + 1
            session.commit()

    add()
    with Session(engine) as session:
        assert (len(tries), session.get_one(Invoice, 1).total) == (2, 51)


def test_classes_and_tables_name_their_tables(engine: Any) -> None:
    row = {"id": 1, "total": 100, "rev": 1}
    with Session(engine) as session:
        assert sql.row_lock(session, Invoice, {"id": 1}) == row
        assert sql.row_lock(session, Invoice.__table__, {"id": 1}) == row
        assert sql.row_lock(session, ("in.voice",), {"id": 1}) == row
        with pytest.raises(InvalidArgument, match="is no table"):
            sql.row_lock(session, sqlalchemy.select(Invoice), {"id": 1})
