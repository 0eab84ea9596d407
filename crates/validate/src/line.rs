//! The lines that rows of comma-separated values are in.

use csv::Position;
use shardloom_document::row_line;

/// What a line begins with that is a comment.
pub(crate) const COMMENT: u8 = b'#';

/// The line of a row of `text`, from 1, which the reader has begin at `position`; the first, where it says no position.
pub(crate) fn line_of(text: &[u8], position: Option<&Position>) -> usize {
    let Some(position) = position else { return 1 };
    let rest = text.get(position.byte() as usize..).unwrap_or_default();
    row_line(position.line(), rest, Some(COMMENT))
}
