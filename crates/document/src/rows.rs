//! Rows of comma-separated values.

use std::io::BufRead;

/// The line, from 1, of a row that a reader has begin at `line`: readers (crate `csv`) have it begin with the empty lines
/// before it, and with the comments, where lines that begin with `comment` are some. `rest` is the text from there on.
pub fn row_line(line: u64, rest: impl BufRead, comment: Option<u8>) -> usize {
    let is_skipped = |line: &Vec<u8>| match line.first() {
        None => true,
        Some(&first) => line == b"\r" || Some(first) == comment,
    };
    // What cannot be read is no empty line.
    let skipped = rest.split(b'\n').map_while(Result::ok).take_while(is_skipped);
    line as usize + skipped.count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_behind_the_empty_lines_and_comments_before_it() {
        for (rest, comment, right) in [
            ("1,2\n", None, 3),
            ("\n\r\n1,2\n", None, 5),
            ("# 1\n1,2\n", None, 3),
            ("# 1\n\n#\n1,2\n#\n", Some(b'#'), 6),
            (" \n1,2\n", Some(b'#'), 3),
            ("1,2", Some(b'#'), 3),
        ] {
            assert_eq!(row_line(3, rest.as_bytes(), comment), right, "{rest:?}");
        }
    }
}
