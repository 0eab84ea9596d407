//! A rank reads the samples that it computes, of the inputs that its stage reads, and no others.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::thread::{ThreadId, current};

use crate::support::{Samples, gpt, mesh, serial, trainer};
use shardloom_data::{DataError, Field, Part, Source};
use shardloom_plan::{ScheduleKind, Uniform};

/// The positions that each thread reads, by input. A rank is a thread.
type Reads = Arc<Mutex<BTreeMap<String, Vec<(ThreadId, u64)>>>>;

struct Watched {
    samples: Samples,
    reads: Reads,
}

impl Source for Watched {
    fn field<'a>(
        &'a self,
        part: Part,
        position: u64,
        input: &str,
        room: &'a mut Vec<u32>,
    ) -> Result<Option<Field<'a>>, DataError> {
        let mut reads = self.reads.lock().expect("the reads");
        reads.entry(input.to_owned()).or_default().push((current().id(), position));
        drop(reads);
        self.samples.field(part, position, input, room)
    }

    fn validation_len(&self) -> u64 {
        0
    }
}

#[test]
fn replicas_share_the_samples_out_and_only_the_stages_that_need_them_read_them() {
    let graph = gpt();
    for (dp, tp) in [(2, 1), (4, 1), (2, 2)] {
        let uniform = Uniform {
            pp: 2,
            mesh: mesh(dp, 1, tp),
            global_batch: 16,
            microbatches: 2,
            schedule: ScheduleKind::OneForwardOneBackward,
            ..serial()
        };
        let plan = uniform.plan(&graph, "model", "local");
        let reads = Reads::default();
        let samples = Watched { samples: Samples::patterned(64, 16, 64), reads: reads.clone() };
        let mut trainer = trainer(&graph, &plan, samples, 1e-3);
        trainer.step().expect("a step");
        reads.lock().expect("the reads").clear();
        trainer.step().expect("a step");
        let reads = reads.lock().expect("the reads");
        let mut readers = BTreeSet::new();
        for input in ["tokens", "targets"] {
            let mut of_threads: BTreeMap<String, BTreeSet<u64>> = BTreeMap::new();
            for (thread, position) in &reads[input] {
                of_threads.entry(format!("{thread:?}")).or_default().insert(*position);
            }
            assert_eq!(of_threads.len() as u32, dp * tp, "{input}, {dp} x {tp}");
            // The tensor-parallel ranks of a replica read the same.
            let mut of_replicas: BTreeMap<&BTreeSet<u64>, u32> = BTreeMap::new();
            for positions in of_threads.values() {
                *of_replicas.entry(positions).or_default() += 1;
            }
            assert!(of_replicas.values().all(|&ranks| ranks == tp), "{of_replicas:?}");
            let mut all: Vec<u64> = of_replicas.into_keys().flatten().copied().collect();
            all.sort_unstable();
            assert_eq!(all, (16..32).collect::<Vec<u64>>(), "{input}, {dp} x {tp}");
            readers.extend(of_threads.into_keys());
        }
        // The first stage reads tokens, the last one targets.
        assert_eq!(readers.len() as u32, 2 * dp * tp);
    }
}
