//! Parameters as matrices, for compression by rows and by factors.

use crate::WeightParam;

/// A rank's part of a parameter as a matrix within the elements of its bucket, or some rows of it. A vector is one
/// of a single row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Matrix {
    /// Its first element.
    pub offset: usize,
    /// Its rows.
    pub rows: usize,
    /// Its columns.
    pub columns: usize,
}

impl Matrix {
    /// The rank's part of a parameter.
    pub fn of(param: &WeightParam) -> Matrix {
        let (rows, columns) = param.shape.split_at(param.row_axes);
        let (rows, columns) = (rows.iter().product(), columns.iter().product());
        Matrix { offset: param.offset, rows, columns }
    }

    /// How many elements it has.
    pub fn elements(self) -> usize {
        self.rows * self.columns
    }

    /// Bytes of it as [`OneBit`](shardloom_plan::Compression::OneBit) sends it: for each row two means in fp32, and
    /// a bit for each element.
    pub fn sign_bytes(self) -> usize {
        self.rows * self.row_sign_bytes()
    }

    fn row_sign_bytes(self) -> usize {
        8 + self.columns.div_ceil(8)
    }

    /// Those that two factors of so small a rank are smaller than, and the others, each in order.
    pub fn factored(all: &[Matrix], rank: u32) -> (Vec<Matrix>, Vec<Matrix>) {
        let is_larger = |it: &&Matrix| (it.rows + it.columns) * (rank as usize) < it.elements();
        all.iter().partition(is_larger)
    }

    /// Matrices that lie side by side, cut between rows into so many shares in order, of about as many bytes each
    /// as [`OneBit`](shardloom_plan::Compression::OneBit) sends them: at most one row more.
    pub fn shares(all: &[Matrix], count: usize) -> Vec<Vec<Matrix>> {
        let total: usize = all.iter().map(|it| it.sign_bytes()).sum();
        let mut shares = vec![vec![]; count];
        for (index, share) in shares.iter_mut().enumerate() {
            let mut start = 0;
            for matrix in all {
                // The first row that begins in the share, or after it.
                let row = |share: usize| {
                    let bytes = (total * share / count).saturating_sub(start);
                    bytes.div_ceil(matrix.row_sign_bytes()).min(matrix.rows)
                };
                let (first, end) = (row(index), row(index + 1));
                if first < end {
                    let offset = matrix.offset + first * matrix.columns;
                    share.push(Matrix { offset, rows: end - first, ..*matrix });
                }
                start += matrix.sign_bytes();
            }
        }
        shares
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_are_smaller_than_their_matrix() {
        let matrix = |offset, rows, columns| Matrix { offset, rows, columns };
        // Of rank 2, factors have 16 elements, as many as the matrix, and 18 instead of 20.
        let all = [matrix(0, 4, 4), matrix(16, 4, 5)];
        assert_eq!(Matrix::factored(&all, 2), (vec![all[1]], vec![all[0]]));
        assert_eq!(Matrix::factored(&all, 1), (all.to_vec(), vec![]));
    }

    #[test]
    fn shares_tile_and_differ_by_a_row() {
        let matrix = |offset, rows, columns| Matrix { offset, rows, columns };
        let all = [matrix(0, 5, 100), matrix(500, 1, 7), matrix(507, 40, 30), matrix(1707, 1, 1)];
        for count in 1..60 {
            let shares = Matrix::shares(&all, count);
            let mut next = 0;
            for part in shares.iter().flatten() {
                assert_eq!(part.offset, next, "{count} shares lie side by side");
                next += part.elements();
            }
            assert_eq!((shares.len(), next), (count, 1708));
            let bytes = |share: &Vec<Matrix>| share.iter().map(|it| it.sign_bytes()).sum::<usize>();
            let total: usize = all.iter().map(|it| it.sign_bytes()).sum();
            let most = shares.iter().map(bytes).max().expect("shares");
            let longest = all.iter().map(|it| it.row_sign_bytes()).max().expect("matrices");
            assert!(most <= total.div_ceil(count) + longest, "{most} of {total} by {count}");
        }
    }
}
