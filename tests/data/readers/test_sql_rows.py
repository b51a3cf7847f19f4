"""Dumps of SQLite, MySQL and PostgreSQL as rows: every text as it was, and nothing executed."""

from __future__ import annotations

import sqlite3

import pytest
from hypothesis import given
from hypothesis import strategies as st
from training_pro.tests.data.readers import reading
from training_pro.tests.data.readers.reading import read_columns, read_table, refusal, write

one_process = reading.one_process  # for all tests here
QUOTE = "'"
MYSQL = r"""-- MySQL dump 10.13  Distrib 8.0.36
/*!40101 SET NAMES utf8mb4 */;
DROP TABLE IF EXISTS `chats`;
CREATE TABLE `chats` (
  `id` int NOT NULL AUTO_INCREMENT, # a comment; with 'a quote
  `question` varchar(20) DEFAULT 'a,b)', `answer` text,
  PRIMARY KEY (`id`), KEY `by_question` (`question`(10))
) ENGINE=InnoDB;
INSERT INTO `chats` VALUES (1,'It\'s \\ a\nb','x''y'),(2,"a \"q\"",NULL),(-3,_utf8mb4 'c',now()),(4,'a;b',0x6869);
DELIMITER ;;
CREATE PROCEDURE p() BEGIN INSERT INTO chats VALUES (9,'never','run'); END ;;
DELIMITER ;
INSERT IGNORE INTO `shop`.`chats` (`question`,`answer`) VALUES ('q','a');
"""
POSTGRES = r"""-- PostgreSQL database dump
\restrict token
CREATE FUNCTION public.f() RETURNS trigger LANGUAGE plpgsql AS $_$
BEGIN INSERT INTO chats VALUES (9, 'never', 'run'); END; $_$;
CREATE TABLE public.chats (id integer NOT NULL, question text, answer text, CONSTRAINT c CHECK ((id > 0)));
COPY public.chats (id, question, answer) FROM stdin;
1	It's a\\b\nline\ttab	\N
2		x''y
\.
INSERT INTO public.chats VALUES (3, 'back\slash', E'e\n''q\'') ON CONFLICT (id) DO NOTHING;
INSERT INTO public.chats OVERRIDING SYSTEM VALUE VALUES (4, 'a'::text, CAST('b' AS text)),
  (5, $$it's$$, 'b' || 'c');
CREATE TRIGGER t BEFORE INSERT ON public.chats FOR EACH ROW EXECUTE FUNCTION public.f();
"""


def rows_of(columns):
    return [tuple(row.values()) for row in columns]


def test_a_mysql_dump_has_its_rows(tmp_path):
    rows = read_columns(write(tmp_path / "a.sql", MYSQL))
    assert rows[-1] == {"question": "q", "answer": "a"} and list(rows[0]) == ["id", "question", "answer"]
    binary = {"binary data, not text": 2}
    expected = [(1, "It's \\ a\nb", "x'y"), (2, 'a "q"', None), (-3, "c", None), (4, "a;b", binary)]
    assert rows_of(rows[:-1]) == expected


def test_a_postgresql_dump_has_its_rows(tmp_path):
    table, rows = read_table(write(tmp_path / "a.sql", POSTGRES))
    assert table.what == "table chats" and list(rows[0].columns) == ["id", "question", "answer"]
    assert rows_of(row.columns for row in rows) == [
        ("1", "It's a\\b\nline\ttab", None), ("2", "", "x''y"), (3, "back\\slash", "e\n'q'"), (4, "a", "b"),
        (5, "it's", "bc"),
    ]  # fmt: skip


SIGNS = st.text("ab'\"\\;-/*$`[](),\n\tNé\u4e00", max_size=12)
LETTERS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=5)


@given(st.lists(st.tuples(SIGNS, LETTERS), min_size=1))
def test_a_sqlite_dump_has_every_text_as_it_was(tmp_path_factory, rows):
    connection = sqlite3.connect(":memory:")
    connection.execute('create table "t ""x" (question text, "an answer" text)')
    connection.execute('create trigger r after insert on "t ""x" begin select 1; select 2; end')
    connection.executemany('insert into "t ""x" values (?, ?)', rows)
    dump = "\n".join(connection.iterdump()) + "\nINSERT INTO log VALUES(replace('a\\nb','\\n',char(10)));"
    path = write(tmp_path_factory.mktemp("dump") / "a.sql", dump)
    assert rows_of(read_columns(path, 'table="t \\"x"')) == rows
    assert read_columns(path, "table=log") == [{"1": "a\nb"}]


def test_an_insert_that_is_longer_than_what_is_read_at_once_has_all_rows(tmp_path):
    rows = [(number, "it's; -- 'x' /*" * (number % 40)) for number in range(3000)]
    values = ",".join(f"({number},'{text.replace(QUOTE, 2 * QUOTE)}')" for number, text in rows)
    path = write(tmp_path / "a.sql", f"INSERT INTO texts (id, text) VALUES {values};\nINSERT INTO b VALUES(1);")
    assert path.stat().st_size > 1_000_000 and rows_of(read_columns(path)) == rows


@pytest.mark.parametrize(
    ("dump", "message"),
    [
        ("INSERT INTO t VALUES ('abc", 'is damaged: "\'abc" has no closing quote. Save the dump again.'),
        ("INSERT INTO t VALUES ('abc', 1", "is damaged: a row of table t has no end."),
        ("INSERT INTO t (a, b) VALUES (1);", "a row of table t has 1 value, not 2."),
        ("COPY t (a) FROM stdin;\nabc\n", "the rows of table t have no end."),
        ("CREATE TABLE t (text text);", "has no tables."),
        ("PGDMP\1\2", "custom format. Save it again with pg_dump --format=plain."),
        ("INSERT INTO a (text) VALUES (1); INSERT INTO b (text) VALUES (1);", "for example table=a."),
    ],
)
def test_what_can_not_be_read_is_a_sentence(tmp_path, dump, message):
    assert message in refusal(tmp_path / "a.sql", dump)


def test_a_table_is_chosen_as_in_a_database_and_a_select_is_refused(tmp_path):
    path = write(tmp_path / "a.sql", "INSERT INTO a (text) VALUES ('x'); INSERT INTO b (text) VALUES ('y');")
    assert read_columns(path, "table=B") == [{"text": "y"}]
    with pytest.raises(Exception, match="enter table=NAME"):
        read_columns(path, "SELECT * FROM a")
