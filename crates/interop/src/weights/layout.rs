//! How one parameter lies in a tensor of a file.

use super::Tensor;

/// A parameter seen as a matrix.
#[derive(Debug)]
pub(super) struct Matrix {
    /// Its shape with all axes.
    pub shape: Vec<usize>,
    /// Product of the extents of its row axes; 1 of a vector, which has none.
    pub rows: usize,
    /// Product of the extents of its other axes.
    pub columns: usize,
    /// Whether it is a bias or gain: files hold those with one axis.
    pub is_vector: bool,
}

/// Which part of a tensor a parameter is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Part {
    /// All of it.
    Whole,
    /// All of it, with rows and columns exchanged.
    Transposed,
    /// The n-th third of its columns.
    Third(usize),
    /// Its first rows.
    FirstRows,
}

impl Part {
    /// The parameter's elements, or what shape the tensor must have.
    pub(super) fn read(self, matrix: &Matrix, tensor: &Tensor) -> Result<Vec<f32>, String> {
        let needed = self.shape(matrix);
        let fits = match self {
            Part::FirstRows => {
                tensor.shape.len() == needed.len()
                    && tensor.shape[1..] == needed[1..]
                    && tensor.shape[0] >= needed[0]
            }
            _ => tensor.shape == needed,
        };
        if !fits {
            let first = if self == Part::FirstRows { ", or more rows," } else { "" };
            return Err(format!("{needed:?}{first} is needed"));
        }
        let (rows, columns) = (matrix.rows, matrix.columns);
        Ok(match self {
            Part::Whole => tensor.values.clone(),
            Part::FirstRows => tensor.values[..rows * columns].to_vec(),
            Part::Transposed => transposed(&tensor.values, columns, rows),
            Part::Third(third) => tensor
                .values
                .chunks_exact(3 * columns)
                .flat_map(|row| &row[third * columns..(third + 1) * columns])
                .copied()
                .collect(),
        })
    }

    /// Writes the parameter's elements into a tensor made by [`Part::empty`].
    pub(super) fn write(self, matrix: &Matrix, values: Vec<f32>, tensor: &mut Tensor) {
        let columns = matrix.columns;
        match self {
            Part::Whole | Part::FirstRows => tensor.values = values,
            Part::Transposed => tensor.values = transposed(&values, matrix.rows, columns),
            Part::Third(third) => {
                let rows = tensor.values.chunks_exact_mut(3 * columns);
                for (row, values) in rows.zip(values.chunks_exact(columns)) {
                    row[third * columns..(third + 1) * columns].copy_from_slice(values);
                }
            }
        }
    }

    /// The tensor that holds such a part, before anything is written into it.
    pub(super) fn empty(self, matrix: &Matrix) -> Tensor {
        let shape = self.shape(matrix);
        let values = match self {
            // It is replaced whole.
            Part::Whole | Part::FirstRows | Part::Transposed => vec![],
            Part::Third(_) => vec![0.0; shape.iter().product()],
        };
        Tensor { shape, values }
    }

    /// The shape of the tensor that holds such a part.
    pub(super) fn shape(self, matrix: &Matrix) -> Vec<usize> {
        let (rows, columns) = (matrix.rows, matrix.columns);
        let shape = match self {
            Part::Whole | Part::FirstRows => [rows, columns],
            Part::Transposed => [columns, rows],
            Part::Third(_) => [rows, 3 * columns],
        };
        if matrix.is_vector { shape[1..].to_vec() } else { shape.to_vec() }
    }
}

/// The transpose of a `rows x columns` matrix.
fn transposed(values: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    let mut out = Vec::with_capacity(values.len());
    for column in 0..columns {
        out.extend((0..rows).map(|row| values[row * columns + column]));
    }
    out
}
