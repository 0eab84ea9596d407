//! What the notes of methods with servers say, against what their papers and their plans say.

use shardloom_cluster::Cluster;
use shardloom_graph::{Graph, ModelSpec};
use shardloom_methods::{Choice, named};
use shardloom_plan::{Ranges, SendOrder, Share};
use shardloom_search::Request;

/// A table of 4096 rows, and sixteen tokens in a sample.
const GPT: &str = "gpt:layers=1,hidden=16,heads=2,seq=16,vocab=4096,tied=false";

fn graph() -> Graph {
    ModelSpec::parse(GPT).and_then(|spec| spec.graph()).expect("a model")
}

fn chosen(method: &str, devices: u32, batch: usize) -> Choice {
    let text = format!("h100-80g:{devices}");
    let (method, cluster) = (named(method).expect("registered"), Cluster::parse(&text));
    let request = Request::new(GPT, &text, batch);
    method.choose(&graph(), &cluster.expect("a preset"), &request).expect("a plan")
}

fn says(choice: &Choice, words: &str) -> bool {
    choice.notes.iter().any(|note| note.contains(words))
}

/// Jiang et al. 2020, section 4.1: of n machines with GPUs and k without, each of the latter sums the share
/// 2 (n - 1) / (n² + k n - 2 k).
#[test]
fn byteps_says_which_share_its_servers_sum_by_the_published_split() {
    for (devices, batch) in [(2, 8), (3, 8), (4, 12), (5, 8), (6, 12), (8, 64)] {
        let choice = chosen("byteps", devices, batch);
        let summation = choice.plan.sync.summation.expect("there are servers");
        assert_eq!((summation.ranges, summation.order), (Ranges::Hashed, SendOrder::NextUse));
        assert_eq!(summation.share, Share::Balanced, "{devices} devices");
        let [n, k] = [choice.plan.pipeline.len() as u32, summation.servers].map(f64::from);
        let share = k * 2.0 * (n - 1.0) / (n * n + k * n - 2.0 * k);
        let (colocated, words) = match k {
            0.0 => (true, "every worker's device has a server, and there are no others".into()),
            _ if k < n => {
                let share = 100.0 * share;
                (true, format!("servers on machines of their own sum {share:.1}% of the gradients"))
            }
            // From as many servers as workers on, these sum all that there is.
            _ => (false, "servers sum all of the gradients".to_owned()),
        };
        assert_eq!(summation.colocated, colocated);
        assert!(says(&choice, &words), "{words}: {:?}", choice.notes);
    }
}

/// Of R rows that are as likely as each other, L lookups leave out each with probability (1 - 1 / R)^L.
#[test]
fn parallax_puts_tables_on_all_its_servers_and_says_how_much_of_them_a_worker_looks_up() {
    for (devices, batch) in [(2, 8), (4, 12), (6, 64), (8, 32)] {
        let choice = chosen("parallax", devices, batch);
        let plan = &choice.plan;
        let summation = plan.sync.summation.expect("there are servers");
        let servers = summation.of_workers(plan.pipeline.len());
        assert_eq!(says(&choice, "every worker's device has a server"), summation.colocated);
        let lookups = batch / plan.pipeline.len() * 16;
        let share = 1.0 - (1.0 - 1.0 / 4096.0_f64).powi(lookups as i32);
        let words = format!("looks up {:.1}% of the rows of embedding.token", 100.0 * share);
        assert!(says(&choice, &words), "{words}: {:?}", choice.notes);
        let tables: Vec<_> = plan.parameters.iter().filter(|it| it.sparse == Some(true)).collect();
        assert!(!tables.is_empty(), "{devices} devices");
        let mut used: Vec<u32> = vec![];
        for table in tables {
            let pieces = table.servers.as_ref().expect("they lie on servers");
            assert!((1..=16 * servers as usize).contains(&pieces.len()), "{pieces:?}");
            used.extend(pieces);
        }
        used.sort_unstable();
        used.dedup();
        assert_eq!(used, Vec::from_iter(0..servers), "{devices} devices");
    }
}
