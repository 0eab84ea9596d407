//! The kinds of files, with an example of each.

use std::fs;
use std::path::Path;

use super::declarations::{Declaration, declarations};
use super::page::{Section, section};

/// An example of a plan.
pub const PLAN: &str = r#"
format = 1
model = "gpt:layers=4,hidden=256,heads=4,seq=128,vocab=256"
cluster = "local:4"
global_batch = 16
microbatches = 4
schedule = "1f1b"
recompute = "none"
layout = "batch:dp, heads:tp, ffn:tp, vocab:tp"
clip_norm = 1.0

[sync]
algorithm = "ring"
zero = 1
bucket_bytes = 25000000

[precision]
compute = "fp32"
gradients = "fp32"
master = false

[optimizer]
kind = "adamw"
beta1 = 0.9
beta2 = 0.95
epsilon = 1e-8
weight_decay = 0.1

[[pipeline]]
stage = [
    { blocks = [0, 3], mesh = { dp = 2 }, devices = "0..2" },
    { blocks = [3, 6], mesh = { dp = 2 }, devices = "2..4" },
]
"#;

/// An example of a cluster.
pub const CLUSTER: &str = r#"
[[group]]
machine = "h100-80g"
nodes = 4
devices_per_node = 8

[[group]]
machine = "a100-80g"
nodes = 2
uplink_bytes_per_second = 1e11    # 800 Gbps out of each node
"#;

/// An example of a model.
pub const MODEL: &str = r#"
[model]
name = "small-llama"

[llama]
layers = 8
hidden = 512
heads = 8
kv_heads = 2
ffn = 1376
seq = 1024
vocab = 32000
"#;

/// The preset that is the example of a machine.
pub const MACHINE: &str = "crates/cluster/presets/h100-80g.toml";

/// The preset that is the example of a software stack.
pub const STACK: &str = "crates/cluster/stacks/fsdp-eager.toml";

const NOTES: [(&str, &str); 20] = [
    ("Written.rule", "Which version."),
    ("Mesh", "Written as a table of widths by axis: `{ dp = 2, tp = 4 }`."),
    ("MeasuredTable.precision", "The format measured in."),
    ("MeasuredTable.points", "The products."),
    ("ClusterFile", "The nodes of a cluster, in the order of their devices' numbers."),
    ("ClusterFile.group", "Nodes that are alike."),
    ("ClusterFile.machine", "Machines that groups name and that are no presets, in full."),
    ("GroupTable", "Nodes that are alike."),
    ("GroupTable.machine", "A preset, a machine of this file, or `local`."),
    ("GroupTable.nodes", "How many nodes."),
    ("GroupTable.devices_per_node", "Devices used in each; all that the machine has if absent."),
    (
        "GroupTable.uplink_bytes_per_second",
        "What each node sends out to the network, where it is not the machine's.",
    ),
    (
        "GroupTable.inter_bytes_per_second",
        "What a link between nodes carries, where it is not the machine's.",
    ),
    ("Document.model", "The model's name."),
    ("Document.dims", "Extents of the dimensions of a network of one's own, by name."),
    ("Document.input", "Inputs of a network of one's own."),
    ("Document.block", "Blocks of a network of one's own."),
    ("Header", "What the model is called."),
    ("Header.name", "1 to 100 letters, digits, `.`, `_` and `-`."),
    ("BlockConfig", "An example is `examples/models/own-network.toml`."),
];

/// The page, of the sources below `root`.
pub fn page(root: &Path) -> String {
    let of = |name: &str| declarations(&root.join("crates").join(name).join("src"));
    let read = |path: &str| fs::read_to_string(root.join(path)).expect("a preset");
    let (plans, clusters) = (of("plan"), of("cluster"));
    let (graphs, collectives) = (of("graph"), of("collectives"));
    let (machine, stack) = (read(MACHINE), read(STACK));
    fn all<'a>(crates: &[&'a [Declaration]]) -> Vec<&'a Declaration> {
        crates.iter().flat_map(|each| each.iter()).collect()
    }
    let sections = [
        Section {
            title: "Plans",
            about: "What `shardloom plan -o` writes and `train`, `simulate`, `explain`, `program` and `export` \
                    read. [plan.md](plan.md) says what it all means, with further examples.",
            root: "Plan",
            example: PLAN,
            known: all(&[&plans, &collectives, &graphs]),
            notes: &NOTES,
        },
        Section {
            title: "Models",
            about: "A MODEL may be such a file: a name, and one family with its sizes or a network of one's \
                    own. The same keys follow a family's name in one line: `gpt:layers=4,hidden=256,...`.",
            root: "Document",
            example: MODEL,
            known: all(&[&graphs]),
            notes: &NOTES,
        },
        Section {
            title: "Clusters",
            about: "A CLUSTER may be such a file.",
            root: "ClusterFile",
            example: CLUSTER,
            known: all(&[&clusters]),
            notes: &NOTES,
        },
        Section {
            title: "Machines",
            about: "What `[[machine]]` of a cluster says, presets are written in (this is `h100-80g`), and \
                    `shardloom profile` writes of this machine.",
            root: "Profile",
            example: &machine,
            known: all(&[&clusters]),
            notes: &NOTES,
        },
        Section {
            title: "Software stacks",
            about: "What `--stack mine.toml` reads, and presets are written in (this is `fsdp-eager`).",
            root: "Stack",
            example: &stack,
            known: all(&[&clusters]),
            notes: &NOTES,
        },
    ];
    let mut text = String::from(
        "# Reference of files\n\nEvery key of the TOML files that Shardloom reads, from the types that read them: \
         a test writes this page anew (`UPDATE_REFERENCE=1 cargo test -p shardloom --test suite reference`) and \
         fails where it is another. An unknown key is refused, with what would be right.\n",
    );
    for each in &sections {
        text += "\n";
        text += &section(each);
    }
    text
}
