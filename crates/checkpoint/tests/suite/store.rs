//! The checkpoints of a run in its folder: which are kept, which is loaded, and what a crash leaves of them.

use std::fs;

use shardloom_checkpoint::{Checkpoint, Store, Writer};

use crate::small_checkpoint::{fill, load, names, save, value};

#[test]
fn the_last_ones_are_kept_and_later_steps_left_alone() {
    let root = tempfile::tempdir().expect("temporary folder");
    for step in [1, 2, 30] {
        save(root.path(), step, step as f32, None);
    }
    save(root.path(), 3, 3.0, Some(2));
    assert_eq!(names(root.path()), ["step-00000002", "step-00000003", "step-00000030"]);
    save(root.path(), 40, 40.0, Some(1));
    assert_eq!(names(root.path()), ["step-00000040"]);
}

#[test]
fn a_step_written_again_replaces_the_former_one() {
    let root = tempfile::tempdir().expect("temporary folder");
    save(root.path(), 5, 1.0, None);
    save(root.path(), 5, 2.0, Some(1));
    assert_eq!(names(root.path()), ["step-00000005"]);
    assert_eq!(value(&load(root.path())), 2.0);
}

#[test]
fn a_crash_while_writing_leaves_the_former_checkpoint() {
    let root = tempfile::tempdir().expect("temporary folder");
    save(root.path(), 5, 1.0, None);
    let writer = Writer::create(root.path(), 6).expect("created");
    fill(&writer, 2.0);
    std::mem::forget(writer);
    assert_eq!(names(root.path()), [".writing-step-00000006", "step-00000005"]);
    assert_eq!(value(&load(root.path())), 1.0);
    assert_eq!(names(root.path()).len(), 2, "reading changes nothing");

    save(root.path(), 6, 3.0, None);
    assert_eq!(names(root.path()), ["step-00000005", "step-00000006"]);
    assert_eq!(value(&load(root.path())), 3.0);
}

#[test]
fn a_crash_while_replacing_leaves_the_former_or_the_new_checkpoint() {
    let root = tempfile::tempdir().expect("temporary folder");
    let (visible, former) =
        (root.path().join("step-00000005"), root.path().join(".replaced-step-00000005"));

    // Before the new one got its name.
    save(root.path(), 5, 1.0, None);
    fs::rename(&visible, &former).expect("renamed");
    assert_eq!(value(&load(root.path())), 1.0);
    drop(Writer::create(root.path(), 6).expect("created"));
    assert_eq!(names(root.path()), ["step-00000005"]);

    // After that, before the former one was deleted.
    fs::rename(&visible, &former).expect("renamed");
    let other = tempfile::tempdir().expect("temporary folder");
    fs::rename(save(other.path(), 5, 2.0, None), &visible).expect("renamed");
    assert_eq!(value(&load(root.path())), 2.0);
    drop(Writer::create(root.path(), 6).expect("created"));
    assert_eq!(names(root.path()), ["step-00000005"]);
    assert_eq!(value(&load(root.path())), 2.0);
}

#[test]
fn only_its_own_leftovers_are_cleared() {
    let root = tempfile::tempdir().expect("temporary folder");
    for name in [".writing-notes", ".deleting-step-00000001", ".git", "step-1", "log"] {
        fs::create_dir(root.path().join(name)).expect("made");
    }
    save(root.path(), 2, 1.0, Some(1));
    assert_eq!(names(root.path()), [".git", ".writing-notes", "log", "step-00000002", "step-1"]);
}

/// Whichever of the checkpoints it is in.
#[test]
fn nothing_is_deleted_where_a_checkpoint_holds_something_else() {
    for with_notes in ["step-00000010", "step-00000020", "step-00000030"] {
        let root = tempfile::tempdir().expect("temporary folder");
        for step in [10, 20, 30] {
            save(root.path(), step, 1.0, None);
        }
        let before = names(root.path());
        let notes = root.path().join(with_notes).join("notes.txt");
        fs::write(&notes, "of somebody").expect("written");
        let store = Store::open(root.path()).expect("a folder");
        let error = store.delete_all().expect_err("there is more").to_string();
        assert!(error.contains("notes.txt"), "{error}");
        assert_eq!(names(root.path()), before, "with notes in {with_notes}");
        fs::remove_file(&notes).expect("it is there");
        store.delete_all().expect("there is no more");
        assert_eq!(names(root.path()), [""; 0]);
    }
}

#[test]
fn a_damaged_checkpoint_is_refused_by_name_and_the_one_before_it_used() {
    let root = tempfile::tempdir().expect("temporary folder");
    for step in 1..=4 {
        save(root.path(), step, step as f32, None);
    }
    let step = |step: u64| root.path().join(format!("step-{step:08}"));
    fs::remove_file(step(4).join("manifest.json")).expect("removed");
    fs::write(step(3).join("shard-00001.safetensors"), b"short").expect("written");
    let (checkpoint, refused) =
        Store::open(root.path()).expect("opened").load_latest().expect("a checkpoint");
    assert_eq!(checkpoint.step(), 2);
    assert_eq!(
        refused.iter().map(|refused| &refused.path).collect::<Vec<_>>(),
        [&step(4), &step(3)]
    );
    assert!(refused[0].reason.contains("manifest.json"), "{}", refused[0]);
    assert!(refused[1].reason.contains("shard-00001.safetensors is damaged: it has 5 bytes"));
}

#[test]
fn no_usable_checkpoint_is_an_error_that_lists_all() {
    let root = tempfile::tempdir().expect("temporary folder");
    let store = Store::open(root.path()).expect("opened");
    let message = store.load_latest().expect_err("empty").to_string();
    assert_eq!(message, format!("no usable checkpoint in {}", root.path().display()));

    for step in [1, 2] {
        let folder = save(root.path(), step, 1.0, None);
        fs::remove_file(folder.join("shard-00000.safetensors")).expect("removed");
    }
    let message = store.load_latest().expect_err("damaged").to_string();
    assert_eq!(message.lines().count(), 3);
    assert!(message.lines().nth(1).expect("newest first").contains("step-00000002"), "{message}");

    let error = Store::open(&root.path().join("absent")).expect_err("absent").to_string();
    assert!(error.starts_with("there is no folder") && error.contains("absent"), "{error}");
}

#[test]
fn a_renamed_checkpoint_is_not_taken_for_a_newer_one() {
    let root = tempfile::tempdir().expect("temporary folder");
    let folder = save(root.path(), 1, 1.0, None);
    let renamed = root.path().join("step-00000009");
    fs::rename(folder, &renamed).expect("renamed");
    let message = Store::open(root.path()).expect("opened").load_latest().expect_err("renamed");
    assert!(message.to_string().contains("its manifest is of step 1"), "{message}");
    assert_eq!(Checkpoint::open(&renamed).expect("named by hand").step(), 1);
}
