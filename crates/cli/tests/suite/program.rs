//! `shardloom program`: what ranks hold and do, as text.

use crate::invocation::{Outcome, Place};

const MODEL: &str = "gpt:layers=2,hidden=16,heads=2,seq=8,vocab=256";

/// Two stages of two replicas each, as a plan file.
fn place_with_plan() -> Place {
    let place = Place::new();
    place.write("plan.toml", plan());
    place
}

fn plan() -> String {
    format!(
        r#"
format = 1
model = "{MODEL}"
cluster = "h100-80g:4"
global_batch = 4
microbatches = 2
schedule = "1f1b"
recompute = "none"
layout = "batch:dp, heads:tp, ffn:tp, vocab:tp"
sync = {{ algorithm = "ring", zero = 1, bucket_bytes = 25000000 }}
precision = {{ compute = "fp32", gradients = "fp32", master = false }}
optimizer = {{ kind = "sgd", momentum = 0.9, weight_decay = 0.0 }}
[[pipeline]]
stage = [
    {{ blocks = [0, 2], mesh = {{ dp = 2 }}, devices = "0..2" }},
    {{ blocks = [2, 4], mesh = {{ dp = 2 }}, devices = "2..4" }},
]
"#
    )
}

/// The lines that begin the text of a rank.
fn ranks(text: &str) -> Vec<&str> {
    text.lines().filter(|line| line.starts_with("rank ")).collect()
}

#[test]
fn of_ranks_that_do_the_same_the_first_is_said() {
    let outcome = place_with_plan().run("program plan.toml").succeeds();
    outcome.check(outcome.stdout.starts_with("How to read this"), "no legend first");
    let expected = [
        "rank 0 of 4: stage 0, dp 0; 2 ranks, 0 to 1, do the same on different parts",
        "rank 2 of 4: stage 1, dp 0; 2 ranks, 2 to 3, do the same on different parts",
    ];
    outcome.check(ranks(&outcome.stdout) == expected, "other ranks");
    let says = |what: &str| outcome.check(outcome.stdout.contains(what), what);
    says(
        "  send     to rank 2 (512 B): <- block.0.ffn.residual[1,8,16]; frees block.0.ffn.residual",
    );
    says("  forward 1: as forward 0");
    says("update by sgd of block.1: block.1 weights/share[");
}

#[test]
fn one_rank_can_be_asked_for() {
    let outcome = place_with_plan().run("program plan.toml --rank 3").succeeds();
    let expected = ["rank 3 of 4: stage 1, dp 1; 2 ranks, 2 to 3, do the same on different parts"];
    outcome.check(ranks(&outcome.stdout) == expected, "another rank");
    outcome.check(outcome.stdout.contains("from rank 1 (512 B)"), "not what rank 1 sends it");
}

#[test]
fn a_model_is_split_as_options_say() {
    let options = "--cluster h100-80g:4 --pp 2 --tp 2 --global-batch 4 --no-clip";
    let outcome = Place::new().run(&format!("program {MODEL} {options}")).succeeds();
    outcome.check(ranks(&outcome.stdout).len() == 2, "not two stages");
    let sums = outcome.stdout.lines().any(|line| line.contains("  tp       all-reduce (sum"));
    outcome.check(sums, "nothing is summed over tp");
}

#[test]
fn a_thread_for_collectives_bounds_whole_gradients_and_is_judged_by_no_search() {
    let options = "--cluster h100-80g:2 --dp 2 --zero 2 --global-batch 4 --microbatches 2";
    let text = |more: &str| {
        Place::new().run(&format!("program {MODEL} {options} {more}")).succeeds().stdout
    };
    assert_ne!(text(""), text("--communication-thread"), "no further points");
    let train =
        "train gpt:layers=2,hidden=16,heads=2 --seq 8 --data text.txt --global-batch 4 --steps 2";
    let digest = |more: &str| {
        let outcome =
            Place::new().run(&format!("{train} --dp 2 --zero 2 {more} --json")).succeeds();
        outcome.summary()["weights_digest"].clone()
    };
    assert_eq!(digest(""), digest("--communication-thread"));
    Place::new()
        .run(&format!("{train} --ranks 2 --communication-thread --json"))
        .refuses("usage", "--communication-thread cannot be given with --ranks");
}

#[test]
fn a_plan_that_leaves_out_the_first_devices_trains_as_one_that_does_not() {
    let place = place_with_plan();
    let devices = |from: &str, to: &str| format!("devices = \"{from}..{to}\"");
    let shifted = plan().replace(&devices("2", "4"), &devices("5", "7"));
    place.write("shifted.toml", shifted.replace(&devices("0", "2"), &devices("2", "4")));
    let digest = |plan: &str| {
        let train = format!("train {plan} --data text.txt --steps 2 --json");
        place.run(&train).succeeds().summary()["weights_digest"].clone()
    };
    assert_eq!(digest("shifted.toml"), digest("plan.toml"));
}

#[test]
fn workers_train_with_servers_whose_plan_is_written_simulated_and_explained() {
    let servers = "--dp 2 --servers 1 --staleness 1 --global-batch 4 --optimizer sgd:momentum=0.9";
    let place = Place::new();
    let text = place.run(&format!("program {MODEL} --cluster h100-80g:3 {servers}")).succeeds();
    text.check(ranks(&text.stdout).len() == 3, "not two workers and a server");
    for part in ["gradients to servers", "weights from servers", "update with gradients of rank 1"]
    {
        text.check(text.stdout.contains(part), part);
    }
    let simulated = place.run(&format!("simulate {MODEL} --cluster h100-80g:3 {servers} --json"));
    let simulated = simulated.succeeds();
    let of_ranks = simulated.objects()[0]["ranks"].clone();
    simulated.check(of_ranks.as_array().is_some_and(|it| it.len() == 3), "not three ranks");
    let train = "train gpt:layers=2,hidden=16,heads=2 --seq 8 --data text.txt --steps 4 --json";
    let several = servers.replace("--servers 1", "--servers 2");
    place.run(&format!("{train} {several}")).succeeds();
    place
        .run(&format!("simulate {MODEL} --cluster h100-80g:3 {several} --json"))
        .refuses("plan", "has 3 devices, but the plan needs 4");
    let trained = place.run(&format!("{train} {servers}")).succeeds();
    trained.check(trained.summary()["steps"] == 4, "not all steps");
    trained.check(trained.objects()[0]["gradient_norm"].is_null(), "a norm of all gradients");
    place
        .run(&format!("{train} {servers} --on-nan skip"))
        .refuses("plan", "with servers each updates what it holds by itself");
    place.run(&format!("{train} {servers} --clip-norm 1")).refuses("plan", "--clip-norm");
    place.run(&format!("{train} {servers} --tp 2")).refuses("plan", "each worker is one device");
    place
        .run(&format!("{train} --ranks 2 --servers 1"))
        .refuses("usage", "--servers cannot be given with --ranks");
    place.run(&format!("{train} --staleness 1")).refuses("usage", "--servers");
    let unbounded = servers.replace("--staleness 1", "--staleness unbounded");
    let trained = place.run(&format!("{train} {unbounded}")).succeeds();
    trained.check(trained.summary()["steps"] == 4, "not all steps");
    let replicas = several.replace("--staleness 1", "--server-replicas 1");
    let trained = place.run(&format!("{train} {replicas}")).succeeds();
    let alone = place.run(&format!("{train} {}", several.replace("--staleness 1", ""))).succeeds();
    let digest = |outcome: &Outcome| outcome.summary()["weights_digest"].clone();
    trained.check(digest(&trained) == digest(&alone), "other weights than without replicas");
    let peak = |outcome: &Outcome| outcome.summary()["peak_bytes_per_rank"][3].as_u64();
    trained.check(peak(&trained) > peak(&alone), "a server holds no replica");
    place.run(&format!("{train} {several} --server-replicas 1")).refuses("plan", "replicas");
    place.run(&format!("{train} --server-replicas 1")).refuses("usage", "--servers");
    let vague = servers.replace("--staleness 1", "--staleness some");
    place.run(&format!("{train} {vague}")).refuses("usage", "neither a whole number of steps nor");
    let planned = place
        .run(&format!(
            "plan {MODEL} --cluster h100-80g:4 --method parameter-server --global-batch 4 -o ps.toml"
        ))
        .succeeds();
    planned.check(planned.stdout.contains("staleness 0"), "not synchronous");
    let plan = std::fs::read_to_string(place.path("ps.toml")).expect("it was written");
    planned.check(plan.contains("servers"), &plan);
    place.run("simulate ps.toml --json").succeeds();
}

#[test]
fn replicas_compress_gradients_by_option_and_go_on_with_what_they_left_out() {
    let place = Place::new();
    let program = format!("program {MODEL} --cluster h100-80g:2 --dp 2 --global-batch 4");
    let text = place.run(&format!("{program} --compression one-bit")).succeeds();
    for part in ["compress gradients, one-bit", "residual of one-bit", "all-to-all", "u8"] {
        text.check(text.stdout.contains(part), part);
    }
    let train = "train gpt:layers=2,hidden=16,heads=2 --seq 8 --data text.txt --dp 2 --tp 2 --json \
                 --global-batch 4 --optimizer sgd:momentum=0.9";
    let digest = |options: &str| {
        let trained = place.run(&format!("{train} {options}")).succeeds();
        trained.summary()["weights_digest"].clone()
    };
    let mut all = vec![digest("--steps 4")];
    for how in ["bf16-feedback", "one-bit", "top-k:10", "power-sgd:1"] {
        let whole = digest(&format!("--steps 4 --compression {how}"));
        let folder = how.replace(':', "-");
        let kept = format!("--compression {how} --checkpoint {folder}");
        digest(&format!("--steps 2 {kept}"));
        assert_eq!(digest(&format!("--steps 4 {kept} --resume")), whole, "{how}");
        assert!(!all.contains(&whole), "{how} shows");
        all.push(whole);
    }
    for (options, hint) in [
        ("--compression top-k:10 --zero 2", "every replica updates all weights, so 0"),
        ("--compression one-bit --algorithm star", "replicas gather what all send"),
        ("--compression fp16 --average-every 2", "leave sync.averaging out"),
    ] {
        place.run(&format!("{train} --steps 2 {options}")).refuses("plan", hint);
    }
    place
        .run(&format!("{train} --steps 2 --compression zip"))
        .refuses("usage", "unknown compression");
}

#[test]
fn replicas_agree_on_the_order_of_reductions_by_options_and_by_name() {
    let place = Place::new();
    let on = format!("{MODEL} --cluster h100-80g:2 --dp 2 --global-batch 4 --negotiate");
    let text = place.run(&format!("program {on} --fusion-bytes 4000")).succeeds();
    for part in ["dp negotiated", "requests over dp", "side by side over dp"] {
        text.check(text.stdout.contains(part), part);
    }
    let step = |cycle: &str| {
        let simulated = place.run(&format!("simulate {on} --cycle-seconds {cycle} --json"));
        simulated.succeeds().object()["step_seconds"].as_f64().expect("a time")
    };
    assert!(step("0.25") > step("0.001") + 0.2, "a second cycle begins later");
    let train = "train gpt:layers=2,hidden=16,heads=2 --seq 8 --data text.txt --dp 2 --tp 2 --json \
                 --global-batch 4 --no-clip --steps 4";
    let digest = |options: &str| {
        let trained = place.run(&format!("{train} {options}")).succeeds();
        trained.summary()["weights_digest"].clone()
    };
    let fixed = digest("--algorithm direct");
    assert_eq!(digest("--algorithm direct --negotiate"), fixed);
    let settings = "--cycle-seconds 0 --fusion-bytes 2000 --clock virtual --cluster h100-80g:4";
    assert_eq!(digest(&format!("--algorithm direct --negotiate {settings}")), fixed);
    for (options, hint) in [
        ("--negotiate --zero 1", "replicas hold and update everything: zero = 0"),
        ("--negotiate --compression one-bit", "requests are all-reduces"),
        ("--negotiate --average-every 2", "replicas are kept equal by their gradients"),
        ("--negotiate --cycle-seconds 61", "from 0 to 60 seconds"),
    ] {
        place.run(&format!("{train} {options}")).refuses("plan", hint);
    }
    place.run(&format!("{train} --fusion-bytes 4000")).refuses("usage", "--negotiate");
    let planned = place
        .run(&format!(
            "plan {MODEL} --cluster h100-80g:4 --method horovod --global-batch 4 -o horovod.toml"
        ))
        .succeeds();
    let plan = std::fs::read_to_string(place.path("horovod.toml")).expect("it was written");
    planned.check(plan.contains("[sync.negotiation]") && plan.contains("thread"), &plan);
    place.run("simulate horovod.toml --json").succeeds();
}

#[test]
fn gradients_of_tables_are_rows_by_option() {
    let place = Place::new();
    let untied = "gpt:layers=2,hidden=16,heads=2,seq=8,vocab=97,tied=false";
    let program = format!("program {untied} --cluster h100-80g:2 --dp 2 --global-batch 4 --sparse");
    let text = place.run(&program).succeeds();
    // Two samples of eight tokens on each replica.
    for part in ["sum equal rows of gradients", "all-gather", "/next 16 u32", "/next 256 f32"] {
        text.check(text.stdout.contains(part), part);
    }
    let train = "train gpt:layers=2,hidden=16,heads=2,tied=false --seq 8 --data text.txt --dp 2 --json \
                 --global-batch 4 --algorithm direct";
    let digest = |options: &str| {
        let trained = place.run(&format!("{train} {options}")).succeeds();
        trained.summary()["weights_digest"].clone()
    };
    let dense = digest("--steps 4");
    assert_eq!(digest("--steps 4 --sparse"), dense);
    digest("--steps 2 --sparse --checkpoint rows");
    assert_eq!(digest("--steps 4 --sparse --checkpoint rows --resume"), dense);
    for (options, hint) in [
        ("--zero 2", "every replica updates all of embedding.token, so 0"),
        ("--compression fp16", "give it a group of its own"),
        ("--algorithm star", "replicas gather the rows of all"),
    ] {
        let train = train.replace("--algorithm direct", "");
        let run = place.run(&format!("{train} --steps 2 --sparse {options}"));
        run.refuses("plan", hint);
    }
    let tied = train.replace("tied=false", "tied=true");
    place.run(&format!("{tied} --steps 2 --sparse")).refuses("plan", "is read by head too");
}

#[test]
fn replicas_with_weights_of_their_own_train_by_options_and_by_name() {
    let averaged = "--dp 2 --average-every 3 --global-batch 4 --optimizer sgd:momentum=0.9";
    let place = Place::new();
    let text = place.run(&format!("program {MODEL} --cluster h100-80g:2 {averaged}")).succeeds();
    for part in ["of their own along dp", "whether it is a step in 3 that averages", "guard by"] {
        text.check(text.stdout.contains(part), part);
    }
    let simulate = format!("simulate {MODEL} --cluster h100-80g:2");
    let step = |options: &str| {
        let found = place.run(&format!("{simulate} {options} --json")).succeeds();
        found.objects()[0]["step_seconds"].as_f64().expect("a time")
    };
    let seldom = averaged.replace("--average-every 3", "--average-every 6");
    assert!(step(&seldom) < step(averaged));
    let train = "train gpt:layers=2,hidden=16,heads=2 --seq 8 --data text.txt --steps 4 --json";
    let trained = place.run(&format!("{train} {averaged}")).succeeds();
    trained.check(trained.summary()["steps"] == 4, "not all steps");
    trained.check(trained.objects()[0]["gradient_norm"].is_null(), "a norm of all gradients");
    let tenth = "--average-rate 0.1 --average-before-update";
    place.run(&format!("{train} {averaged} {tenth} --tp 2")).succeeds();
    for (options, hint) in [
        ("--clip-norm 1", "with sync.averaging each replica's gradients have a norm of their own"),
        ("--zero 1", "with sync.averaging replicas have nothing alike to share"),
        ("--average-rate 2", "a share of the mean is above 0 and at most 1"),
    ] {
        place.run(&format!("{train} {averaged} {options}")).refuses("plan", hint);
    }
    place.run(&format!("{train} --average-rate 0.5")).refuses("usage", "--average-every");
    place
        .run(&format!("{train} --average-pairs --average-every 2"))
        .refuses("usage", "cannot be used");
    let pairs = "--dp 2 --average-pairs";
    let trained = place.run(&format!("{train} {pairs}")).succeeds();
    trained.check(trained.summary()["steps"] == 4, "not all steps");
    for (options, hint) in [
        ("--tp 2", "with sync.averaging.partners = one a replica is one rank"),
        ("--pp 2", "with sync.averaging.partners = one a replica is one rank"),
    ] {
        place.run(&format!("{train} {pairs} {options}")).refuses("plan", hint);
    }
    for (method, words) in [
        ("local-sgd", "every = 8"),
        ("synchronous-averaging", "when = \"before-update\""),
        ("pair-averaging", "partners = \"one\""),
    ] {
        let plan = format!("plan {MODEL} --cluster h100-80g:2 --method {method} --global-batch 4");
        let planned = place.run(&format!("{plan} -o {method}.toml")).succeeds();
        let plan = std::fs::read_to_string(place.path(&format!("{method}.toml"))).expect("written");
        planned.check(plan.contains("[sync.averaging]") && plan.contains(words), &plan);
        place.run(&format!("simulate {method}.toml --json")).succeeds();
        place.run(&format!("explain {method}.toml")).succeeds();
        place.run(&format!("train {method}.toml --data text.txt --steps 2 --json")).succeeds();
    }
}

#[test]
fn averages_end_where_it_is_said_and_an_interrupted_run_goes_on_on_either_side() {
    let place = Place::new();
    let averaged = "--dp 2 --average-every 1 --average-rate 0.1 --average-before-update";
    let adaptive = format!("{averaged} --average-until 4 --global-batch 4");
    let train =
        format!("train gpt:layers=2,hidden=16,heads=2 --seq 8 --data text.txt --json {adaptive}");
    let clock = "--clock virtual --cluster h100-80g:2";
    let whole = place.run(&format!("{train} --steps 8 {clock}")).succeeds();
    let told = "from step 4 on replicas are not averaged";
    whole.check(whole.stderr.matches(told).count() == 1, "not said once that averages ended");
    // What is predicted is a step after them, as the simulator has it.
    let alike = "--stack shardloom --precision fp32 --algorithm direct --attention unfused";
    let simulate = format!("simulate {MODEL} --cluster h100-80g:2 {alike} {adaptive}");
    let simulated = place.run(&format!("{simulate} --json")).succeeds();
    let after = &simulated.objects()[0]["after_averages"];
    simulated.check(after["step"] == 4, "not from which step on");
    whole.check(
        whole.summary()["predicted_step_seconds"] == after["step_seconds"],
        "not what is predicted for the part that is measured",
    );
    let text = place.run(&simulate).succeeds();
    text.check(text.stdout.contains("Steady step from 4 on: "), "no time of the other part");
    let digest = |outcome: &Outcome| outcome.summary()["weights_digest"].clone();
    for saved in [2, 4, 6] {
        let folder = format!("run-{saved}");
        let checkpoints = format!("--checkpoint {folder} --checkpoint-every {saved} --force");
        place.run(&format!("{train} --steps 8 {clock} {checkpoints}")).succeeds();
        for step in (1..=8).filter(|step| *step > saved) {
            let later = place.path(&format!("{folder}/step-{step:08}"));
            let _ = std::fs::remove_dir_all(later);
        }
        let resumed = place.run(&format!("{train} --steps 8 {clock} {checkpoints} --resume"));
        let resumed = resumed.succeeds();
        let expected = &whole.losses()[saved..];
        resumed.check(resumed.losses() == expected, &format!("other losses after {saved} steps"));
        resumed.check(digest(&resumed) == digest(&whole), "other weights");
        let says = resumed.stderr.contains(told);
        resumed.check(says == (saved <= 4), "said where it does not happen, or not where it does");
    }
    for (options, place_of, hint) in [
        ("--steps 4", "--steps", "averages replicas until 4 steps are done"),
        ("--steps 3", "--steps", "averages replicas until 4 steps are done"),
    ] {
        let refused = place.run(&format!("{train} {options}"));
        refused.refuses("usage", hint);
        refused.check(refused.stderr.contains(place_of), "not said what to change");
    }
    for (options, hint) in [
        ("--dp 2 --average-every 1 --average-until 0", "at least one step averages: 1 or more"),
        ("--dp 2 --average-every 8 --average-until 5", "at least one step averages: 8 or more"),
        ("--average-every 1 --average-until 4", "one replica has no averages that could end"),
        (
            "--dp 2 --servers 1 --average-every 1 --average-until 4",
            "with sync.averaging there are no servers",
        ),
    ] {
        let run = "train gpt:layers=2,hidden=16,heads=2 --seq 8 --data text.txt --steps 8 --json";
        place.run(&format!("{run} {options}")).refuses("plan", hint);
    }
    let run = "train gpt:layers=2,hidden=16,heads=2 --seq 8 --data text.txt --steps 8 --json";
    place.run(&format!("{run} --average-until 4")).refuses("usage", "--average-every");
    let plan = "plan gpt:layers=2,hidden=16,heads=2,vocab=256 --seq 8 --cluster h100-80g:2";
    let plan = format!("{plan} --method adaptive-sgd --global-batch 4 -o adaptive.toml");
    let planned = place.run(&plan).succeeds();
    planned.check(planned.stdout.contains("until step 1000"), "not said when averages end");
    let text = std::fs::read_to_string(place.path("adaptive.toml")).expect("written");
    planned.check(text.contains("until = 1000"), &text);
    place.run("simulate adaptive.toml --json").succeeds();
    let train = "train adaptive.toml --data text.txt --steps";
    place.run(&format!("{train} 2 --json")).refuses("usage", "averages replicas until 1000 steps");
    std::fs::write(place.path("soon.toml"), text.replace("until = 1000", "until = 1"))
        .expect("written");
    place.run(&format!("{} 2 --json", train.replace("adaptive", "soon"))).succeeds();
}

#[test]
fn a_bound_on_staleness_follows_how_far_apart_workers_are_and_says_so() {
    let place = Place::new();
    let train = "train gpt:layers=2,hidden=16,heads=2 --seq 8 --data text.txt --steps 36 --json";
    let clock = "--clock virtual --cluster h100-80g:3 --drain-every 12";
    let servers = "--dp 2 --servers 1 --staleness 8 --staleness-within 2:8";
    let run = place.run(&format!("{train} {servers} {clock} --checkpoint run --html page.html"));
    let run = run.succeeds();
    // Workers that are alike are less apart than that, at the latest when their first steps are over.
    let said = "steps ahead of the slowest, before 8: none was held back";
    run.check(run.stderr.contains(said), "not said how the bound changes");
    let page = std::fs::read_to_string(place.path("page.html")).expect("written");
    run.check(page.contains("before 8: none was held back"), "not in the report");
    let saved = std::fs::read_to_string(place.path("run/step-00000036/manifest.json"));
    run.check(saved.is_ok_and(|it| it.contains("staleness.bound")), "not in the checkpoint");
    for (options, hint) in [
        ("--dp 2 --staleness-within 1:4", "of which the plan has none"),
        ("--dp 2 --servers 1 --staleness-within 1:4", "begins with the plan's, which is 0"),
        ("--dp 2 --servers 1 --staleness 5 --staleness-within 1:4", "which is 5"),
        ("--dp 2 --servers 1 --staleness unbounded --staleness-within 1:4", "which is unbounded"),
        ("--dp 2 --servers 1 --staleness 1 --staleness-within 0:4", "from 1 step on"),
        ("--dp 2 --servers 1 --staleness 1 --staleness-within 4:1", "the lesser first"),
        ("--dp 2 --servers 1 --staleness 1 --staleness-within 4", "as in 1:4"),
    ] {
        place.run(&format!("{train} {options}")).refuses("usage", hint);
    }
}

#[test]
fn workers_train_with_servers_that_sum_whose_plan_is_written_simulated_and_explained() {
    let servers = "--dp 2 --summation-servers 1 --summation-share 0.5 --global-batch 4";
    let place = Place::new();
    let text = place.run(&format!("program {MODEL} --cluster h100-80g:3 {servers}")).succeeds();
    text.check(ranks(&text.stdout).len() == 3, "not two workers and a server");
    text.check(text.stdout.contains("summed on rank 2"), "not said what is summed where");
    let simulated = place.run(&format!("simulate {MODEL} --cluster h100-80g:3 {servers} --json"));
    let simulated = simulated.succeeds();
    let of_ranks = simulated.objects()[0]["ranks"].clone();
    simulated.check(of_ranks.as_array().is_some_and(|it| it.len() == 3), "not three ranks");
    let train = "train gpt:layers=2,hidden=16,heads=2 --seq 8 --data text.txt --steps 4 --json";
    let equal = "--summation-ranges equal --summation-share balanced";
    let several = format!("--dp 2 --summation-servers 2 {equal} --global-batch 4");
    let digest = |options: &str| {
        let trained = place.run(&format!("{train} {options}")).succeeds();
        trained.check(trained.summary()["steps"] == 4, "not all steps");
        trained.check(!trained.objects()[0]["gradient_norm"].is_null(), "no norm of gradients");
        trained.summary()["weights_digest"].clone()
    };
    // Bit for bit, whatever servers there are.
    assert_eq!(digest(servers), digest(&several));
    place.run(&format!("{train} {servers} --tp 2")).refuses("plan", "each worker is one device");
    place
        .run(&format!("{train} {} ", servers.replace("0.5", "2")))
        .refuses("plan", "--summation-share 2");
    place
        .run(&format!("{train} {} ", servers.replace("0.5", "half")))
        .refuses("usage", "neither a number nor balanced");
    place
        .run(&format!("{train} --ranks 2 --summation-servers 1"))
        .refuses("usage", "--summation-servers cannot be given with --ranks");
    place.run(&format!("{train} --summation-share 1")).refuses("usage", "--summation-servers");
    place.run(&format!("{train} {servers} --servers 1")).refuses("usage", "--servers");
    for (method, words) in [("byteps", "share = \"balanced\""), ("herring", "ranges = \"equal\"")] {
        let planned = place
            .run(&format!(
                "plan {MODEL} --cluster h100-80g:4 --method {method} --global-batch 4 -o {method}.toml"
            ))
            .succeeds();
        planned.check(planned.stdout.contains("summing server"), "no servers");
        let file = place.path(&format!("{method}.toml"));
        let plan = std::fs::read_to_string(file).expect("it was written");
        planned.check(plan.contains("[sync.summation]") && plan.contains(words), &plan);
        place.run(&format!("simulate {method}.toml --json")).succeeds();
    }
}

#[test]
fn tables_on_servers_are_planned_and_shown() {
    let place = Place::new();
    let model = "gpt:layers=2,hidden=64,heads=2,seq=16,vocab=4096,tied=false";
    let planned = place
        .run(&format!(
            "plan {model} --cluster h100-80g:4 --method parallax --global-batch 4 -o parallax.toml"
        ))
        .succeeds();
    planned.check(planned.stdout.contains("and with tables"), "no tables");
    planned.check(planned.stdout.contains("of the rows of embedding.token"), "no share");
    let plan = std::fs::read_to_string(place.path("parallax.toml")).expect("it was written");
    planned.check(plan.contains("sparse = true") && plan.contains("servers = []"), &plan);
    place.run("simulate parallax.toml --json").succeeds();
    let server = place.run("program parallax.toml --rank 2").succeeds();
    server.check(server.stdout.contains("take rows"), "no rows");
    let worker = place.run("program parallax.toml --rank 0").succeeds();
    let loads = worker.stdout.contains("load the rows of embedding.token that samples look up");
    worker.check(loads && worker.stdout.contains("at most"), "no rows");
    let other = plan.replace("sparse = true", "sparse = true\nzero = 1");
    std::fs::write(place.path("other.toml"), other).expect("a file");
    place.run("simulate other.toml --json").refuses("plan", "zero");
    // Of few rows nearly all are looked up.
    let model = model.replace("vocab=4096", "vocab=4");
    let dense = place
        .run(&format!("plan {model} --cluster h100-80g:4 --method parallax --global-batch 4"))
        .succeeds();
    dense.check(dense.stdout.contains("all gradients are all-reduced"), "something else");
}

#[test]
fn programs_get_an_object_for_each_rank() {
    let outcome = place_with_plan().run("program plan.toml --json").succeeds();
    let objects = outcome.objects();
    outcome.check(objects.len() == 2, "not two objects");
    for (object, rank) in objects.iter().zip([0, 2]) {
        outcome.check(object["rank"] == rank, "another rank");
        outcome.check(object["multiplicity"] == 2, "not two ranks alike");
        let text = object["text"].as_str().unwrap_or_default();
        outcome.check(text.starts_with(&format!("rank {rank} of 4")), "not its text");
    }
}

#[test]
fn what_cannot_be_used_is_refused_with_what_would_be_right() {
    let place = place_with_plan();
    for (arguments, kind, hint) in [
        ("plan.toml --rank 4", "usage", "rank 4: the plan has ranks 0 to 3"),
        ("plan.toml --rank 4294967295", "usage", "the plan has ranks 0 to 3"),
        ("plan.toml --rank -1", "usage", "'-1' for '--rank <N>': a whole number"),
        ("missing.toml", "file", "missing.toml"),
        ("gpt-2", "usage", "--cluster is needed"),
        ("plan.toml --cluster h100-80g:4", "usage", "--cluster cannot be given"),
    ] {
        place.run(&format!("program {arguments} --json")).refuses(kind, hint);
    }
    let one = format!("{MODEL} --cluster h100-80g:1 --rank 1 --json");
    place.run(&format!("program {one}")).refuses("usage", "the plan has rank 0 alone");
}
