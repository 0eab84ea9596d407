use shardloom_kernels::embedding::*;
use shardloom_kernels::reduce::sum_into;

use crate::oracle::{check_destination, numbers};

const TOKENS: [u32; 6] = [4, 0, 4, 9, 2, 4];
const VOCABULARY: usize = 10;

#[test]
fn vocabulary_ranges_add_up_to_the_whole_lookup_and_split_its_gradient() {
    for columns in [1, 3, 17] {
        let table = numbers(1, VOCABULARY * columns);
        let mut whole = vec![f32::NAN; TOKENS.len() * columns];
        gather(&TOKENS, &table, columns, 0, &mut whole);
        for (row, &token) in whole.chunks(columns).zip(&TOKENS) {
            assert_eq!(row, &table[token as usize * columns..][..columns]);
        }

        let mut sum = vec![0.0; whole.len()];
        for (from, to) in [(0, 3), (3, 5), (5, 10)] {
            let mut part = vec![f32::NAN; whole.len()];
            gather(&TOKENS, &table[from * columns..to * columns], columns, from, &mut part);
            sum_into(&mut sum, &part);
        }
        assert_eq!(sum, whole);

        let dy = numbers(2, whole.len());
        let mut want = vec![0.0; table.len()];
        for (dy, &token) in dy.chunks(columns).zip(&TOKENS) {
            for (c, &dy) in dy.iter().enumerate() {
                want[token as usize * columns + c] += f64::from(dy);
            }
        }
        for (from, to) in [(0, 10), (0, 3), (3, 5), (5, 10)] {
            check_destination(&want[from * columns..to * columns], 1e-6, |dtable, accumulate| {
                gather_weight_grad(&TOKENS, &dy, columns, from, dtable, accumulate);
            });
        }
    }
}
