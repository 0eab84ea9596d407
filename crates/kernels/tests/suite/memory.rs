use shardloom_kernels::device::{HostSlice, HostSliceMut};
use shardloom_kernels::{Buffer, Format, Memory, processor};

#[test]
fn bytes_are_counted_as_requested_and_the_peak_is_kept() {
    let memory = Memory::new(processor());
    let a = memory.alloc(Format::F32, 10);
    let b = memory.alloc(Format::U8, 3);
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
    let memory = Memory::new(processor());
    let step = || {
        let x = memory.alloc(Format::F32, 100);
        let y = memory.alloc_zeroed(Format::U32, 100);
        let z = memory.alloc(Format::U8, 1000);
        drop(y);
        let w = memory.alloc(Format::F32, 99);
        drop((x, z, w));
    };
    step();
    let first = memory.system_allocations();
    assert_eq!(first, 3);
    (0..10).for_each(|_| step());
    assert_eq!(memory.system_allocations(), first);
}

#[test]
fn a_reused_block_is_zeroed_when_asked_for() {
    let memory = Memory::new(processor());
    processor().fill(memory.alloc(Format::U8, 70).view_mut(), 7.0);
    let mut bytes = [1; 70];
    let zeroed = memory.alloc_zeroed(Format::U8, 70);
    processor().download(zeroed.view(), HostSliceMut::U8(&mut bytes));
    assert_eq!(bytes, [0; 70]);
    assert_eq!(memory.system_allocations(), 1);
}

#[test]
fn every_format_is_aligned_and_holds_what_was_written() {
    let (memory, device) = (Memory::new(processor()), processor());
    let bf16s: Vec<u16> = (0..17).map(|i| half::bf16::from_f32(i as f32).to_bits()).collect();
    let f16s: Vec<u16> = (0..17).map(|i| half::f16::from_f32(i as f32).to_bits()).collect();
    let f32s: Vec<f32> = (0..17).map(|i| i as f32).collect();
    let f64s: Vec<f64> = (0..17).map(f64::from).collect();
    let u32s: Vec<u32> = (0..17).collect();
    let u8s: Vec<u8> = (0..17).collect();
    for (format, from) in [
        (Format::F32, HostSlice::F32(&f32s)),
        (Format::Bf16, HostSlice::Bf16(&bf16s)),
        (Format::F16, HostSlice::F16(&f16s)),
        (Format::F64, HostSlice::F64(&f64s)),
        (Format::U32, HostSlice::U32(&u32s)),
        (Format::U8, HostSlice::U8(&u8s)),
    ] {
        let mut buffer = memory.alloc(format, 17);
        assert_eq!(buffer.bytes(), 17 * format.bytes());
        device.upload(from, buffer.view_mut());
        let mut lent = 0;
        device.lend(buffer.view_mut(), &mut |elements| {
            let address = match elements {
                HostSliceMut::F32(held) => (held == f32s.as_slice(), held.as_ptr().addr()),
                HostSliceMut::Bf16(held) => (held == bf16s.as_slice(), held.as_ptr().addr()),
                HostSliceMut::F16(held) => (held == f16s.as_slice(), held.as_ptr().addr()),
                HostSliceMut::F64(held) => (held == f64s.as_slice(), held.as_ptr().addr()),
                HostSliceMut::U32(held) => (held == u32s.as_slice(), held.as_ptr().addr()),
                HostSliceMut::U8(held) => (held == u8s.as_slice(), held.as_ptr().addr()),
            };
            assert!(address.0, "{format} holds what was written");
            assert_eq!(address.1 % 64, 0, "{format}");
            lent += 1;
        });
        assert_eq!(lent, 1);
    }
    assert!(memory.alloc(Format::F32, 0).view().is_empty());
}

#[test]
fn a_buffer_is_empty_if_it_has_no_elements() {
    let memory = Memory::new(processor());
    assert!(memory.alloc(Format::F32, 0).is_empty());
    assert!(!memory.alloc(Format::F32, 1).is_empty());
}

#[test]
#[should_panic(expected = "read as the format it was allocated with")]
fn reading_as_another_format_is_refused() {
    let buffer = Memory::new(processor()).alloc(Format::U8, 4);
    processor().download(buffer.view(), HostSliceMut::F32(&mut [0.0; 4]));
}

#[test]
#[should_panic(expected = "elements 3..5 of 4")]
fn a_view_beyond_its_buffer_is_refused() {
    let buffer = Memory::new(processor()).alloc(Format::F32, 4);
    assert_eq!(buffer.view().slice(1..4).slice(0..3).len(), 3);
    let _ = buffer.view().slice(3..5);
}

#[test]
fn an_adopted_buffer_is_counted_by_its_new_owner_and_its_block_is_given_back() {
    let (sender, receiver) = (Memory::new(processor()), Memory::new(processor()));
    for _ in 0..5 {
        let sent: Buffer = sender.alloc(Format::F32, 8);
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
    Memory::new(processor()).alloc(Format::F32, usize::MAX / 2 + 1);
}

#[test]
fn places_of_an_arena_reach_to_its_last_byte_and_no_line_further() {
    let (device, memory) = (processor(), Memory::new(processor()));
    for bytes in [1, 63, 64, 65, 128, 200, 1000] {
        memory.reserve(bytes);
        // The last line that a byte of it is in.
        let last = (bytes - 1) / 64 * 64;
        let mut place = memory.take(last, 1, Format::U8, bytes - last).expect("it is free");
        device.fill(place.view_mut(), 3.0);
        let mut found = vec![0; bytes - last];
        device.download(place.view(), HostSliceMut::U8(&mut found));
        assert!(found.iter().all(|&it| it == 3), "{bytes} bytes");
        let beyond = std::panic::AssertUnwindSafe(|| memory.take(last + 64, 2, Format::U8, 1));
        assert!(std::panic::catch_unwind(beyond).is_err(), "behind {bytes} bytes");
    }
}

#[test]
fn what_has_no_bytes_is_not_asked_of_the_system() {
    let memory = Memory::new(processor());
    for format in [Format::F32, Format::Bf16, Format::F64, Format::U8] {
        assert!(memory.alloc(format, 0).is_empty());
    }
    memory.reserve(0);
    assert_eq!((memory.system_allocations(), memory.peak_bytes()), (0, 0));
    drop(memory.alloc(Format::U8, 1));
    memory.reserve(1);
    assert_eq!(memory.system_allocations(), 2);
}
