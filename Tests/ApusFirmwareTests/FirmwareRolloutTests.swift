import ApusContract
import ApusCore
import ApusFirmware
import SwiftProtobuf
import Testing

@Suite("Which version a device is offered (IV-E1)")
struct FirmwareRolloutTests {
    private static let cam = DeviceID(unchecked: "cam")

    private static func release(
        _ version: String, from: String = "", state: FirmwareRollOutState = .active, percentage: UInt32 = 100,
        groups: [String] = [], image: UInt64 = 1
    ) -> FirmwareRelease {
        .with {
            ($0.version, $0.from, $0.state, $0.percentage) = (version, from, state, percentage)
            ($0.groups, $0.image, $0.sealed) = (groups, image, true)
        }
    }

    private static func product(_ releases: [FirmwareRelease]) -> FirmwareProduct {
        .with {
            $0.releases = releases.sorted {
                (FirmwareVersion($0.version) ?? Self.zero) < (FirmwareVersion($1.version) ?? Self.zero)
            }
        }
    }

    private static let zero: FirmwareVersion = {
        guard let zero = FirmwareVersion("0") else { preconditionFailure("0 is a version") }
        return zero
    }()

    private func offer(
        _ current: String, _ product: FirmwareProduct, device: DeviceID = cam, groups: Set<String> = [],
        tallies: [UInt64: FirmwareCount] = [:]
    ) throws -> String? {
        let current = try #require(FirmwareVersion(current))
        let candidates = FirmwareRollout.candidates(for: device, current: current, in: product)
        return FirmwareRollout.offer(of: candidates, groups: groups, tallies: tallies)?.version
    }

    @Test("The newest active version is offered, and never the same or an older one (IV-E1)")
    func newest() throws {
        let product = Self.product([
            Self.release("1.0.0"), Self.release("1.1.0"), Self.release("2.0.0-rc.1"),
            Self.release("1.2.0", state: .draft), Self.release("3", state: .paused), Self.release("4", state: .stopped),
        ])
        #expect(try offer("0.9", product) == "2.0.0-rc.1")
        #expect(try offer("1.1.0", product) == "2.0.0-rc.1")
        #expect(try offer("2.0.0-rc.1", product) == nil)
        #expect(try offer("2.0.0", product) == nil)
        var unsealed = product
        unsealed.releases[unsealed.releases.count - 3].sealed = false
        #expect(try offer("0.9", unsealed) == "1.1.0")
    }

    @Test("A version that requires another one is offered after that one (IV-E1: version-bound upgrades)")
    func chain() throws {
        let product = Self.product([
            Self.release("1.5.0"), Self.release("2.0.0", from: "1.5"), Self.release("3.0.0", from: "2.0.0"),
        ])
        var (current, path) = ("1.0.0", [String]())
        while let next = try offer(current, product) {
            path.append(next)
            current = next
        }
        #expect(path == ["1.5.0", "2.0.0", "3.0.0"])
        #expect(try offer("1.5.0", product) == "2.0.0" && offer("1.5.0-rc.1", product) == "1.5.0")
        // A minimum version that cannot be read includes nobody.
        #expect(try offer("1.0", Self.product([Self.release("2", from: "x")])) == nil)
    }

    @Test("A larger percentage only adds devices, and the shares are about right and differ by version (IV-E1)")
    func percentage() {
        let devices = (0..<10_000).map { DeviceID(unchecked: "cam-\($0)") }
        var earlier: Set<DeviceID> = []
        for percentage in [0, 1, 5, 10, 50, 99, 100] as [UInt32] {
            let release = Self.release("1.5.0", percentage: percentage)
            let chosen = Set(devices.filter { FirmwareRollout.isChosen($0, by: release) })
            #expect(earlier.isSubset(of: chosen))
            #expect(abs(chosen.count - Int(percentage) * 100) <= 200, "\(percentage)%: \(chosen.count)")
            earlier = chosen
        }
        #expect(earlier.count == devices.count)
        #expect(!devices.contains { FirmwareRollout.isChosen($0, by: Self.release("1.5.0", percentage: 0)) })
        let two = ["1.5.0", "1.6.0"].map { version in
            Set(devices.filter { FirmwareRollout.isChosen($0, by: Self.release(version, percentage: 10)) })
        }
        #expect(two[0].intersection(two[1]).count < 300)
    }

    @Test("A version for groups is offered to their devices only, and others are offered the one before (IV-E1)")
    func groups() throws {
        let product = Self.product([Self.release("1.1"), Self.release("1.2", groups: ["beta", "staff"])])
        #expect(try offer("1.0", product) == "1.1")
        #expect(try offer("1.0", product, groups: ["other"]) == "1.1")
        #expect(try offer("1.0", product, groups: ["staff"]) == "1.2")
    }

    @Test("Failures stop a version at the number and over the share, counted since it was activated (IV-E1)")
    func failures() throws {
        var release = Self.release("1.5.0", image: 7)
        (release.stopFailures, release.stopFailurePercent) = (3, 20)
        let cases: [(installed: UInt64, failed: UInt64, stops: Bool)] = [
            (0, 0, false), (0, 2, false), (0, 3, true), (12, 3, false), (11, 3, true), (100, 25, false),
            (100, 26, true),
        ]
        for (installed, failed, stops) in cases {
            let count = FirmwareCount(installed: installed, failed: failed)
            #expect(release.mustStop(count) == stops, "\(count)")
            let product = Self.product([release])
            #expect(try offer("1.0", product, tallies: [7: count]) == (stops ? nil : "1.5.0"))
        }
        // Outcomes before the activation do not count, also where fewer are left of them.
        (release.installedBefore, release.failedBefore) = (50, 10)
        #expect(!release.mustStop(FirmwareCount(installed: 50, failed: 12)))
        #expect(release.mustStop(FirmwareCount(installed: 50, failed: 13)))
        #expect(!release.mustStop(FirmwareCount(installed: 55, failed: 8)))
        release.stopFailures = 0
        #expect(!release.mustStop(FirmwareCount(installed: 0, failed: 1000)))
    }

    @Test("For any rules: the offer is the best by definition, and a chain of offers ends (IV-E1)", arguments: 1...200)
    func property(seed: UInt64) throws {
        var random = SeededRandom(seed: seed)
        let names = (0..<Int.random(in: 1...12, using: &random)).map { _ in
            "\(Int.random(in: 0...3, using: &random)).\(Int.random(in: 0...3, using: &random))"
        }
        let groups = ["a", "b", "c"]
        let releases = Set(names).sorted().enumerated().map { index, name in
            var release = Self.release(
                name, from: Bool.random(using: &random) ? "" : "\(Int.random(in: 0...3, using: &random)).1",
                state: [.draft, .active, .active, .active, .paused, .stopped].randomElement(using: &random) ?? .draft,
                percentage: [0, 50, 100, 100].randomElement(using: &random) ?? 0,
                groups: Bool.random(using: &random) ? [] : [groups.randomElement(using: &random) ?? "a"],
                image: UInt64(index + 1))
            release.sealed = Int.random(in: 0..<8, using: &random) > 0
            release.stopFailures = UInt32.random(in: 0...2, using: &random)
            return release
        }
        let product = Self.product(releases)
        let tallies = Dictionary(
            uniqueKeysWithValues: releases.map { release in
                (release.image, FirmwareCount(installed: 1, failed: UInt64.random(in: 0...2, using: &random)))
            })
        let device = DeviceID(unchecked: "cam-\(seed)")
        let memberOf = Set(groups.filter { _ in Bool.random(using: &random) })
        var current = Self.zero
        for _ in 0...releases.count {
            let next = try offer(
                current.description, product, device: device, groups: memberOf, tallies: tallies)
            let best = releases.filter { release in
                guard let version = FirmwareVersion(release.version), version > current, release.sealed else {
                    return false
                }
                let from = FirmwareVersion(release.from) ?? Self.zero
                let count = tallies[release.image] ?? FirmwareCount()
                return release.state == .active && from <= current
                    && FirmwareRollout.isChosen(device, by: release)
                    && (release.groups.isEmpty || !memberOf.isDisjoint(with: release.groups))
                    && (release.stopFailures == 0 || count.failed < UInt64(release.stopFailures))
            }.compactMap { FirmwareVersion($0.version) }.max()
            #expect(next.flatMap { FirmwareVersion($0) } == best, "seed \(seed) at \(current)")
            guard let best else { return }
            current = best
        }
        Issue.record("the chain of seed \(seed) does not end")
    }
}

/// SplitMix64.
struct SeededRandom: RandomNumberGenerator {
    private var state: UInt64

    init(seed: UInt64) { state = seed }

    mutating func next() -> UInt64 {
        state &+= 0x9e37_79b9_7f4a_7c15
        var mixed = state
        mixed = (mixed ^ (mixed >> 30)) &* 0xbf58_476d_1ce4_e5b9
        mixed = (mixed ^ (mixed >> 27)) &* 0x94d0_49bb_1331_11eb
        return mixed ^ (mixed >> 31)
    }
}
