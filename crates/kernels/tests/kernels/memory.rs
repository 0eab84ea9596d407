use shardloom_kernels::{Buffer, DType, Memory};

#[test]
fn bytes_are_counted_as_requested_and_the_peak_is_kept() {
    let memory = Memory::new();
    let a = memory.alloc(DType::F32, 10);
    let b = memory.alloc(DType::U8, 3);
    assert_eq!((memory.live_bytes(), memory.peak_bytes()), (43, 43));
    drop(a);
    assert_eq!((memory.live_bytes(), memory.peak_bytes()), (3, 43));
    memory.reset_peak();
    assert_eq!(memory.peak_bytes(), 3);
    drop(b);
    assert_eq!(memory.live_bytes(), 0);
}

#[test]
fn a_repeated_step_asks_the_system_for_nothing() {
    let memory = Memory::new();
    let step = || {
        let x = memory.alloc(DType::F32, 100);
        let y = memory.alloc_zeroed(DType::U32, 100);
        let z = memory.alloc(DType::U8, 1000);
        drop(y);
        let w = memory.alloc(DType::F32, 99);
        drop((x, z, w));
    };
    step();
    let first = memory.system_allocations();
    assert_eq!(first, 3);
    (0..10).for_each(|_| step());
    assert_eq!(memory.system_allocations(), first);
    memory.release_free();
    step();
    assert_eq!(memory.system_allocations(), 2 * first);
}

#[test]
fn a_reused_block_is_zeroed_when_asked_for() {
    let memory = Memory::new();
    memory.alloc(DType::U8, 70).as_u8_mut().fill(7);
    assert_eq!(memory.alloc_zeroed(DType::U8, 70).as_u8(), [0; 70]);
    assert_eq!(memory.system_allocations(), 1);
}

#[test]
fn every_type_is_aligned_and_holds_what_was_written() {
    let memory = Memory::new();
    let mut f = memory.alloc(DType::F32, 17);
    let mut u = memory.alloc(DType::U32, 17);
    let mut b = memory.alloc(DType::U8, 17);
    for i in 0..17 {
        f.as_f32_mut()[i] = i as f32;
        u.as_u32_mut()[i] = i as u32;
        b.as_u8_mut()[i] = i as u8;
    }
    for i in 0..17 {
        assert_eq!((f.as_f32()[i], u.as_u32()[i], b.as_u8()[i]), (i as f32, i as u32, i as u8));
    }
    for address in
        [f.as_f32().as_ptr().addr(), u.as_u32().as_ptr().addr(), b.as_u8().as_ptr().addr()]
    {
        assert_eq!(address % 64, 0);
    }
    assert!(memory.alloc(DType::F32, 0).as_f32().is_empty());
}

#[test]
#[should_panic(expected = "read as the type it was allocated with")]
fn reading_as_another_type_is_refused() {
    Memory::new().alloc(DType::U8, 4).as_f32();
}

#[test]
fn an_adopted_buffer_is_counted_by_its_new_owner_and_its_block_returns_home() {
    let (sender, receiver) = (Memory::new(), Memory::new());
    for _ in 0..5 {
        let sent: Buffer = sender.alloc(DType::F32, 8);
        let receiver = receiver.clone();
        let sender = sender.clone();
        std::thread::spawn(move || {
            let received = sent.adopt(&receiver);
            assert_eq!((sender.live_bytes(), receiver.live_bytes()), (0, 32));
            drop(received);
        })
        .join()
        .expect("the receiving thread");
    }
    assert_eq!((sender.live_bytes(), receiver.live_bytes()), (0, 0));
    assert_eq!((sender.system_allocations(), receiver.system_allocations()), (1, 0));
    assert_eq!((sender.peak_bytes(), receiver.peak_bytes()), (32, 32));
}

#[test]
#[should_panic(expected = "more than memory has")]
fn a_buffer_whose_bytes_overflow_is_refused() {
    Memory::new().alloc(DType::F32, usize::MAX / 2 + 1);
}
