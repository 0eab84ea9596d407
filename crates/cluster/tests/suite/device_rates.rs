//! Times of operators on devices, and of messages on links.

use proptest::{prelude::*, test_runner::RngSeed};
use shardloom_cluster::{
    AnalyticMatmul, Cluster, Curve, DeviceId, DeviceKind, FormatRates, Link, MatmulPoint,
    MatmulRates, MeasuredMatmul, Path, PeakFlops, Precision, ProductSeconds, Profile, Tile,
};

fn device(name: &str) -> DeviceKind {
    Profile::preset(name).unwrap().device
}

fn close(left: f64, right: f64) {
    assert!((left - right).abs() <= 1e-12 * right.abs(), "{left} is not {right}");
}

#[test]
fn a_product_that_fills_whole_waves_takes_the_time_of_its_tiles() {
    // 16 x 27 tiles of 256 x 128 on 108 units: 4 full waves.
    let a100 = device("a100-80g");
    let (m, n, k) = (16 * 256, 27 * 128, 4096u64);
    let rate = 312e12 * 0.85 / 108.0;
    let expected = 4.0 * 2.0 * 256.0 * 128.0 * (4096.0 + 64.0) / rate + a100.launch_seconds;
    close(a100.matmul_seconds(Precision::Bf16, 1, m, n, k).unwrap(), expected);
}

#[test]
fn one_tile_too_many_costs_another_wave() {
    let a100 = device("a100-80g");
    let seconds = |n| a100.matmul_seconds(Precision::Bf16, 1, 4096, n, 4096).unwrap();
    assert!(seconds(27 * 128 + 1) > 1.05 * seconds(27 * 128));
    close(seconds(27 * 128 - 127), seconds(27 * 128));
}

#[test]
fn a_deep_product_of_few_tiles_is_split_along_its_depth() {
    let a100 = device("a100-80g");
    let seconds = |k| a100.matmul_seconds(Precision::Bf16, 1, 256, 256, k).unwrap();
    let one_unit_per_tile = 2.0 * 64.0 * 64.0 * 1048576.0 / (312e12 * 0.5 / 108.0);
    assert!(seconds(1048576) < one_unit_per_tile / 2.0);
}

/// Two tiles for eight units: each is split in four, and each piece of the result goes through memory
/// as 8 bytes per element, written and read in 32 bits whatever the product's own format is.
#[test]
fn a_split_product_takes_one_wave_and_its_partial_results() {
    let tiles = vec![Tile { m: 64, n: 64, reachable: 0.5 }];
    let device = DeviceKind {
        memory_bytes_per_second: 1e12,
        memory_reachable: 1.0,
        launch_seconds: 0.0,
        peak_flops: PeakFlops {
            fp32: Some(16e12),
            fp16: Some(16e12),
            bf16: Some(16e12),
            ..device("a100-40g").peak_flops
        },
        matmul: MatmulRates::Analytic(AnalyticMatmul {
            units: 8,
            half_k: 64.0,
            tiles,
            relative: [(Precision::Fp16, 0.5)].into(),
            unaligned: 0.25,
        }),
        ..device("a100-40g")
    };
    // A unit reaches 16e12 x 0.5 / 8 = 1e12 FLOP/s.
    let wave = 2.0 * 64.0 * 64.0 * (1024.0 + 64.0) / 1e12;
    let partial = 128.0 * 64.0 * 8.0 / 1e12;
    // Products of 16-bit floating point reach half of what others do.
    for (precision, waves) in
        [(Precision::Fp32, 1.0), (Precision::Fp16, 2.0), (Precision::Bf16, 1.0)]
    {
        let seconds = device.matmul_seconds(precision, 1, 128, 64, 4096).unwrap();
        close(seconds, waves * wave + 4.0 * partial);
        // Two products of one tile each are as many tiles.
        let seconds = device.matmul_seconds(precision, 2, 64, 64, 4096).unwrap();
        close(seconds, waves * wave + 4.0 * partial);
    }
    // Rows that 16 bytes do not divide: 4 elements of 32 bits, 8 of 16.
    let shape = [1, 128, 64, 4096];
    for (precision, row, times) in [
        (Precision::Fp32, 50_260, 1.0),
        (Precision::Fp32, 50_257, 4.0),
        (Precision::Bf16, 50_264, 1.0),
        (Precision::Bf16, 50_260, 4.0),
    ] {
        let seconds = device.matmul_seconds_in_rows(precision, shape, &[4096, row]).unwrap();
        close(seconds, times * wave + 4.0 * partial);
    }
}

/// Of 12 units each works on one of so many pieces of the depth that all pieces of all tiles are at work at once, as
/// long as there are two for each tile.
#[test]
fn units_without_a_tile_take_their_share_of_the_depth() {
    let tile = Tile { m: 32, n: 32, reachable: 1.0 };
    let (tiles, relative) = (vec![tile], [].into());
    let rates = AnalyticMatmul { units: 12, half_k: 8.0, tiles, relative, unaligned: 1.0 };
    let device = DeviceKind {
        // So fast that neither operands nor partial results count.
        memory_bytes_per_second: 1e30,
        launch_seconds: 0.0,
        peak_flops: PeakFlops { fp32: Some(12e12), ..device("a100-40g").peak_flops },
        matmul: MatmulRates::Analytic(rates),
        ..device("a100-40g")
    };
    for tiles in 1..=30u64 {
        let depth = 1000;
        // Waves of tiles, and what a unit has of the depth in each.
        let (waves, each) = match tiles {
            1 => (1, 84),
            2 => (1, 167),
            3 => (1, 250),
            4 => (1, 334),
            5 | 6 => (1, 500),
            _ => (tiles.div_ceil(12), depth),
        };
        let expected = (waves * 2 * 32 * 32 * (each + 8)) as f64 / 1e12;
        for (batch, m, n) in [(1, 32 * tiles, 32), (1, 32, 32 * tiles), (tiles, 32, 32)] {
            let found = device.matmul_seconds(Precision::Fp32, batch, m, n, depth).unwrap();
            assert!((found / expected - 1.0).abs() < 1e-9, "{tiles} tiles: {found} {expected}");
        }
        // A depth of one cannot be split.
        let flat = device.matmul_seconds(Precision::Fp32, tiles, 32, 32, 1).unwrap();
        let expected = (tiles.div_ceil(12) * 2 * 32 * 32 * 9) as f64 / 1e12;
        assert!((flat / expected - 1.0).abs() < 1e-9, "{tiles} tiles: {flat} {expected}");
    }
}

#[test]
fn a_thin_product_runs_at_memory_speed() {
    let a100 = device("a100-80g");
    // One wave of 64 x 64 tiles, quicker than its operand comes out of memory.
    let (m, k) = (108 * 64u64, 8192u64);
    let bytes = 2.0 * (m * k + k + m) as f64;
    let expected = bytes / (2039e9 * a100.memory_reachable) + a100.launch_seconds;
    close(a100.matmul_seconds(Precision::Fp16, 1, m, 1, k).unwrap(), expected);
}

#[test]
fn an_absent_precision_is_refused_with_those_there_are() {
    let message = device("v100-16g").peak_flops(Precision::Bf16).unwrap_err().to_string();
    assert_eq!(message, "v100-16g has no bf16 rate; it has fp32, fp16");
}

fn measured(points: &[(u32, u32, u32, f64)]) -> DeviceKind {
    let points = points.iter().map(|&(m, n, k, seconds)| MatmulPoint { m, n, k, seconds });
    let rates = MeasuredMatmul::new(Precision::Fp32, points.collect()).unwrap();
    DeviceKind { matmul: MatmulRates::Measured(rates), ..device("a100-40g") }
}

#[test]
fn measured_products_are_reproduced_and_batches_add_up() {
    let points = [
        (64, 64, 64, 1e-5),
        (64, 512, 64, 9e-5),
        (512, 64, 64, 7e-5),
        (512, 512, 64, 5e-4),
        (512, 512, 512, 3e-3),
        (64, 64, 512, 6e-5),
    ];
    let device = measured(&points);
    for (m, n, k, seconds) in points {
        let product = |batch| {
            let [m, n, k] = [m, n, k].map(u64::from);
            device.matmul_seconds(Precision::Fp32, batch, m, n, k).unwrap()
        };
        close(product(1), seconds);
        close(product(5), 5.0 * seconds);
    }
    assert!(device.matmul_seconds(Precision::Bf16, 1, 64, 64, 64).is_err());
}

#[test]
fn outside_the_measured_box_the_rate_is_that_of_its_nearest_corner() {
    let device = measured(&[(64, 64, 64, 1e-5), (512, 512, 512, 3e-3)]);
    let seconds = |size| device.matmul_seconds(Precision::Fp32, 1, size, size, size).unwrap();
    close(seconds(1024), 8.0 * 3e-3);
    close(seconds(32), 1e-5 / 8.0);
}

#[test]
fn between_two_measured_products_the_rate_lies_between_theirs() {
    let device = measured(&[(64, 64, 64, 1e-5), (512, 512, 512, 3e-3)]);
    let rate = |size: u64| {
        let seconds = device.matmul_seconds(Precision::Fp32, 1, size, size, size).unwrap();
        2.0 * (size as f64).powi(3) / seconds
    };
    let middle = 181; // the logarithmic middle of 64 and 512
    assert!((rate(middle) / ((rate(64) + rate(512)) / 2.0) - 1.0).abs() < 1e-2);
}

/// At 128 the product of 512 is twice as far as that of 64, so it counts a quarter as much.
#[test]
fn of_two_measured_products_the_nearer_counts_by_the_square_of_its_nearness() {
    let seconds_at = |size: f64, rate: f64| 2.0 * size.powi(3) / rate;
    let device =
        measured(&[(64, 64, 64, seconds_at(64.0, 1e9)), (512, 512, 512, seconds_at(512.0, 6e9))]);
    let seconds = device.matmul_seconds(Precision::Fp32, 1, 128, 128, 128).unwrap();
    close(seconds, seconds_at(128.0, (4.0 * 1e9 + 6e9) / 5.0));
}

/// Of five products the fourth-nearest still counts and the fifth only bounds their reach R: at distance d
/// weights are ((R - d) / (R d))^2 (Franke and Little's form of Shepard's method).
#[test]
fn of_many_measured_products_the_nearest_four_count_the_less_the_further_they_are() {
    // By the binary logarithm of the depth, with the rate of each; asked for at 3.
    let places = [(1.0, 1e9), (2.0, 2e9), (4.0, 5e9), (8.0, 3e9), (16.0, 7e9), (19.0, 9e9)];
    let seconds_at = |depth: f64, rate: f64| 2.0 * depth / rate;
    let points = places
        .map(|(log, rate): (f64, f64)| (1, 1, log.exp2() as u32, seconds_at(log.exp2(), rate)));
    let (mut weighted, mut weights) = (0.0, 0.0);
    for (log, rate) in places {
        let (distance, reach) = ((log - 3.0).abs(), 13.0);
        let weight =
            if distance < reach { ((reach - distance) / (reach * distance)).powi(2) } else { 0.0 };
        weighted += weight * rate;
        weights += weight;
    }
    let seconds = measured(&points).matmul_seconds(Precision::Fp32, 1, 1, 1, 8).unwrap();
    close(seconds, seconds_at(8.0, weighted / weights));
}

#[test]
fn of_products_that_are_all_equally_far_the_mean_rate_counts() {
    // From 1 x 1 x 1 all are as far; each takes 2 x 8 operations.
    let device = measured(&[
        (1, 2, 4, 16.0 / 1e9),
        (1, 4, 2, 16.0 / 2e9),
        (2, 1, 4, 16.0 / 3e9),
        (2, 4, 1, 16.0 / 4e9),
        (4, 1, 2, 16.0 / 5e9),
    ]);
    close(device.matmul_seconds(Precision::Fp32, 1, 1, 1, 1).unwrap(), 2.0 / 3e9);
}

#[test]
fn measured_points_that_cannot_be_are_refused() {
    let point = MatmulPoint { m: 1, n: 1, k: 1, seconds: 1.0 };
    let refused = |points| MeasuredMatmul::new(Precision::Fp32, points).unwrap_err().to_string();
    assert!(refused(vec![]).contains("no matrix product"));
    assert!(refused(vec![point, point]).contains("product 1 x 1 x 1 is listed twice"));
    assert!(refused(vec![MatmulPoint { seconds: 0.0, ..point }]).contains("above 0"));
    assert!(refused(vec![MatmulPoint { k: 0, ..point }]).contains("above 0"));
}

#[test]
fn a_number_has_as_many_bytes_as_its_bits_take() {
    let bits = [
        (Precision::Fp32, 32),
        // 19 bits count, in a word of 32.
        (Precision::Tf32, 32),
        (Precision::Bf16, 16),
        (Precision::Fp16, 16),
        (Precision::Fp8, 8),
    ];
    for (precision, bits) in bits {
        assert_eq!(8 * precision.bytes(), bits, "{precision}");
    }
}

#[test]
fn a_curve_is_linear_between_points_and_proportional_outside() {
    let curve = Curve::new(vec![(100.0, 1.0), (200.0, 3.0)]).unwrap();
    for (size, seconds) in [(100.0, 1.0), (150.0, 2.0), (200.0, 3.0), (400.0, 6.0), (50.0, 0.5)] {
        close(curve.seconds(size, 0.0), seconds);
    }
    close(curve.seconds(50.0, 0.8), 0.9);
    // Sizes are anything above 0, as are those of bytes from 1 on.
    for smallest in [1e-3, 1.0] {
        let curve = Curve::new(vec![(smallest, 2.0)]).unwrap();
        close(curve.seconds(3.0 * smallest, 0.0), 6.0);
    }
    for points in [
        vec![],
        vec![(0.0, 1.0)],
        vec![(f64::INFINITY, 1.0)],
        vec![(1.0, 0.0)],
        vec![(2.0, 1.0), (2.0, 1.0)],
    ] {
        assert!(Curve::new(points).is_err());
    }
}

#[test]
fn a_memory_bound_operator_follows_its_curve_or_its_bytes() {
    let mut device = device("h200");
    let by_bytes = 3e9 / (4800e9 * device.memory_reachable) + device.launch_seconds;
    close(device.memory_bound_seconds("layer-norm", 1e9, 3e9), by_bytes);
    device.rates.insert("layer-norm".into(), Curve::new(vec![(1e9, 0.25)]).unwrap());
    close(device.memory_bound_seconds("layer-norm", 2e9, 3e9), 0.5);
    close(device.memory_bound_seconds("softmax", 1e9, 3e9), by_bytes);
}

#[test]
fn what_was_measured_in_a_format_is_for_that_format_and_the_rest_as_in_full_precision() {
    let mut device = device("h200");
    let product = |seconds| ProductSeconds::from([0.0, 0.0, 0.0, 0.0, seconds]);
    let curve = |seconds| Curve::new(vec![(1e6, seconds)]).unwrap();
    device.rates.insert("layer-norm".into(), curve(0.25));
    device.rates.insert("norm".into(), curve(0.5));
    let in_bf16 = FormatRates {
        rates: [("layer-norm".to_owned(), curve(0.125))].into(),
        products: [("contract.forward".to_owned(), product(1e-12))].into(),
        matmul: None,
    };
    device.in_format.insert(Precision::Bf16, in_bf16);
    device.products.insert("contract.forward".into(), product(4e-12));
    device.products.insert("contract.weight".into(), product(4e-12));
    for (format, norm) in
        [(Precision::Fp32, 0.25), (Precision::Bf16, 0.125), (Precision::Fp16, 0.25)]
    {
        close(device.memory_bound_seconds_in(format, "layer-norm", 1e6, 1.0), norm);
        close(device.memory_bound_seconds_in(format, "norm", 1e6, 1.0), 0.5);
    }
    close(device.memory_bound_seconds("layer-norm", 1e6, 1.0), 0.25);
    let seconds = |format, class: &str| {
        device.measured_product(format, class).map(|it| it.seconds(10, 10, 10))
    };
    assert_eq!(seconds(Precision::Fp32, "contract.forward"), Some(4e-9));
    assert_eq!(seconds(Precision::Bf16, "contract.forward"), Some(1e-9));
    // What is not measured in a format is not taken to be as fast as in another.
    assert_eq!(seconds(Precision::Bf16, "contract.weight"), None);
    assert_eq!(seconds(Precision::Fp16, "contract.forward"), None);
    let text = toml::to_string(&device).unwrap();
    assert_eq!(toml::from_str::<DeviceKind>(&text).unwrap(), device);
}

#[test]
fn a_link_is_latency_and_bandwidth_or_its_measured_curve() {
    let mut link =
        Link { latency_seconds: 1e-6, bytes_per_second: 1e9, reachable: 0.5, curve: None };
    close(link.transfer_seconds(1e6), 1e-6 + 2e-3);
    close(link.transfer_seconds(0.0), 0.0);
    link.curve = Some(Curve::new(vec![(1000.0, 3e-6), (2000.0, 5e-6)]).unwrap());
    close(link.transfer_seconds(500.0), 2e-6);
    close(link.transfer_seconds(1500.0), 4e-6);
    close(link.transfer_seconds(4000.0), 1e-5);
}

#[test]
fn messages_between_nodes_share_the_uplink() {
    let cluster = Cluster::parse("v100-32g:2x8").unwrap();
    let path = |a, b| cluster.link(DeviceId(a), DeviceId(b)).unwrap();
    assert_eq!(path(3, 3), None);
    let inside = path(0, 7).unwrap();
    close(inside.transfer_seconds(1e9, 8), inside.link.transfer_seconds(1e9));
    let across = path(0, 8).unwrap();
    let latency = across.link.latency_seconds;
    let alone = across.transfer_seconds(1e9, 1) - latency;
    // Four cards serve eight devices: up to four messages go undisturbed.
    close(across.transfer_seconds(1e9, 4) - latency, alone);
    close(across.transfer_seconds(1e9, 8) - latency, 2.0 * alone);
    assert!(cluster.link(DeviceId(0), DeviceId(16)).is_err());
}

#[test]
fn a_message_has_its_share_of_what_leaves_the_node_and_no_more_than_its_link() {
    let link = Link { latency_seconds: 1e-6, bytes_per_second: 1e9, reachable: 0.5, curve: None };
    let seconds = |shared, concurrent| {
        Path { link: &link, shared_bytes_per_second: shared }.transfer_seconds(1e6, concurrent)
    };
    for (concurrent, bytes_per_second) in [(0, 4e8), (1, 4e8), (2, 2e8), (5, 8e7)] {
        close(seconds(Some(4e8), concurrent), 1e-6 + 1e6 / bytes_per_second);
    }
    for (shared, concurrent) in [(None, 9), (Some(5e8), 1), (Some(2e9), 4)] {
        close(seconds(shared, concurrent), 1e-6 + 1e6 / 5e8);
    }
}

#[test]
fn between_unlike_nodes_the_slower_card_counts() {
    let cluster = Cluster::parse("h100-80g:8+a100-80g:8").unwrap();
    let path = |a, b| cluster.link(DeviceId(a), DeviceId(b)).unwrap().unwrap();
    assert_eq!(path(0, 8).link.bytes_per_second, 25e9);
    assert_eq!(path(0, 8), path(8, 0));
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 200,
        rng_seed: RngSeed::Fixed(11),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn no_product_beats_the_peak_or_shrinks_as_it_deepens(
        batch in 1u64..64, m in 1u64..9000, n in 1u64..9000, k in 1u64..9000,
    ) {
        for name in Profile::preset_names() {
            let device = device(name);
            let precision = match name {
                "v100-16g" | "v100-32g" | "titan-rtx" | "rtx-2080" => Precision::Fp16,
                "gtx-1080-ti" => Precision::Fp32,
                _ => Precision::Bf16,
            };
            let seconds = device.matmul_seconds(precision, batch, m, n, k)?;
            let flops = 2.0 * (batch * m) as f64 * (n * k) as f64;
            prop_assert!(flops / seconds < device.peak_flops(precision)?);
            let deeper = device.matmul_seconds(precision, batch, m, n, 4 * k)?;
            prop_assert!(deeper >= seconds, "{}: {} then {}", name, seconds, deeper);
        }
    }

    #[test]
    fn an_interpolated_rate_stays_within_the_measured_ones(
        m in 1u64..4096, n in 1u64..4096, k in 1u64..4096, count in 1usize..=8,
    ) {
        let shapes: Vec<_> = (0..8u32)
            .map(|corner| {
                let side = |bit: u32| if corner >> bit & 1 == 1 { 1024 } else { 32 };
                let flops = 2.0 * f64::from(side(0)) * f64::from(side(1)) * f64::from(side(2));
                (side(0), side(1), side(2), flops / (1e9 * f64::from(corner + 1)))
            })
            .take(count)
            .collect();
        let seconds = measured(&shapes).matmul_seconds(Precision::Fp32, 1, m, n, k)?;
        let rate = 2.0 * (m * n * k) as f64 / seconds;
        prop_assert!((0.999e9..=1.001e9 * count as f64).contains(&rate), "{}", rate);
    }
}
