"""Writes Parquet files as PyArrow does, for the tests of crates/data: python make_parquet.py crates/data/tests/parquet

Their names do not end as those of Parquet files do, so that training on the text of this repository passes over them.

Needs pyarrow (the files that are there were written with the version that their metadata names).
"""

import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

TEXTS = ["one\ntwo", "", "three é ₤ 🦀"] + [f"text {n % 7} of many" for n in range(3000)]


def write(name, texts, kind=pa.string(), **options):
    columns = {"id": pa.array(range(len(texts))), "text": pa.array(texts, kind)}
    columns["tags"] = pa.array([[str(n)] for n in range(len(texts))])
    pq.write_table(pa.table(columns), folder / f"{name}.golden", **options)


folder = Path(sys.argv[1])
write("snappy", TEXTS, row_group_size=1100)
write("zstd", TEXTS, compression="zstd", data_page_version="2.0", data_page_size=4096)
write("gzip", TEXTS, compression="gzip", use_dictionary=False, kind=pa.large_string())
write("plain", ["ab", "c"], compression="none", use_dictionary=False)
write("null", ["a"] * 1500 + [None, "b"])
write("binary", [b"ab", b"\xff"], kind=pa.binary())
