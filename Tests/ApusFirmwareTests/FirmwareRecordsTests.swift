import ApusContract
import ApusCore
import ApusCrypto
import ApusFirmware
import ApusStorage
import Foundation
import SwiftProtobuf
import Testing

@Suite("Images, outcomes and groups in the records (IV-E1)")
struct FirmwareRecordsTests {
    private let records = FirmwareRecords(MemoryRecordStore())
    private let bounds: FirmwareConfiguration = {
        var bounds = FirmwareConfiguration()
        (bounds.imageByteCountMax, bounds.customerByteCountMax, bounds.byteCountMax) = (200_000, 300_000, 500_000)
        return bounds
    }()

    /// 100,000 bytes: three chunks and a part.
    private static let image = (0..<100_000).map { UInt8(truncatingIfNeeded: $0 &* 31 &+ $0 >> 8) }

    private static func version(_ text: String) throws -> FirmwareVersion {
        try FirmwareVersion(checking: text, "the version")
    }

    private static func manifest(_ version: String, _ image: [UInt8] = image) throws -> FirmwareManifest {
        try FirmwareManifest(
            product: "bell", version: Self.version(version), size: UInt64(image.count),
            sha256: SHA256.hash(data: image).map { byte in
                let text = String(byte, radix: 16)
                return text.count < 2 ? "0\(text)" : text
            }.joined(), from: nil)
    }

    private static func chunk(_ index: Int, _ image: [UInt8] = image) -> Data {
        Data(image[(index * 32_768)..<min(image.count, (index + 1) * 32_768)])
    }

    // The optimizer of Swift 6.3 crashes if these are inlined into the tests.
    @inline(never)
    private func create(_ version: String, of customer: String = "acme", url: String = "") async throws {
        try await records.create(
            Self.manifest(version), signature: [1], [.with { ($0.language, $0.text) = ("en", "new") }], url: url,
            of: customer, bounds)
    }

    @inline(never)
    private func upload(_ version: String, chunks: [Int] = [3, 0, 2, 1, 0]) async throws {
        for index in chunks {
            try await records.upload(UInt32(index), Self.chunk(index), Self.version(version), "bell", of: "acme")
        }
    }

    @inline(never)
    private func seal(_ version: String) async throws {
        try await records.seal(Self.version(version), "bell", of: "acme", bounds) { () throws(ApusError) in }
    }

    @inline(never)
    private func fails(_ code: ErrorCode, _ body: () async throws -> Void) async {
        do {
            try await body()
            Issue.record("no error \(code)")
        } catch {
            #expect((error as? ApusError)?.code == code, "\(error)")
        }
    }

    @inline(never)
    private func release(_ version: String) async throws -> FirmwareRelease {
        try #require(try await records.product("acme", "bell")).body.release(Self.version(version))
    }

    @Test("Chunks come in any order and again, and the image is sealed only whole and with its hash (IV-E1)")
    func sealing() async throws {
        try await create("1.5.0")
        await fails(.targetUnknown) { try await seal("1.5.0") }
        try await upload("1.5.0", chunks: [2, 3, 0])
        await fails(.targetUnknown) { try await seal("1.5.0") }
        try await refuseBadChunks()
        let wrong = Self.damaged(Self.chunk(1))
        try await records.upload(1, wrong, Self.version("1.5.0"), "bell", of: "acme")
        await fails(.badParameter) { try await seal("1.5.0") }
        #expect(try await !release("1.5.0").sealed)
        try await upload("1.5.0", chunks: [1])
        try await seal("1.5.0")
        #expect(try await release("1.5.0").sealed)
    }

    @Test("A sealed image stays as it is: the same again has no effect, and other bytes are refused (IV-E1)")
    func sealed() async throws {
        try await create("1.5.0")
        for _ in 0..<2 {
            try await upload("1.5.0")
            try await seal("1.5.0")
        }
        let wrong = Self.damaged(Self.chunk(1))
        await fails(.versionConflict) {
            try await records.upload(1, wrong, Self.version("1.5.0"), "bell", of: "acme")
        }
        let number = try await release("1.5.0").image
        #expect(try await records.chunk(number, 1) == Self.chunk(1))
        await fails(.targetUnknown) {
            try await records.upload(0, Self.chunk(0), Self.version("1.5.0"), "bell", of: "other")
        }
    }

    /// Chunks that the image does not have, and of the wrong length.
    private func refuseBadChunks() async throws {
        for (index, data) in [(4, Data([1])), (0, Data([1])), (3, Self.chunk(0)), (1, Data())] {
            await fails(.badParameter) {
                try await records.upload(UInt32(index), data, Self.version("1.5.0"), "bell", of: "acme")
            }
        }
    }

    /// The chunk with one wrong bit.
    private static func damaged(_ chunk: Data) -> Data {
        var wrong = chunk
        wrong[wrong.startIndex + 7] ^= 1
        return wrong
    }

    @Test(
        "A chunk that is uploaded while the image is checked ends the check: what is sealed was read (IV-E1)",
        arguments: 1...50)
    func uploadWhileSealing(run: Int) async throws {
        try await create("1.5.0")
        try await upload("1.5.0")
        var wrong = Self.chunk(0)
        wrong[wrong.startIndex] ^= 1
        async let sealing: Void = seal("1.5.0")
        do {
            try await records.upload(0, wrong, Self.version("1.5.0"), "bell", of: "acme")
        } catch {
            // The check was faster, and the image is closed.
            #expect((error as? ApusError)?.code == .versionConflict)
        }
        var refusal: ApusError?
        do { try await sealing } catch { refusal = error as? ApusError }
        let release = try await release("1.5.0")
        #expect(release.sealed == (refusal == nil))
        if release.sealed { #expect(try await records.chunk(release.image, 0) == Self.chunk(0)) }
    }

    @Test("A check that was interrupted is begun again, and uploads go on after it (IV-E1)")
    func interrupted() async throws {
        try await create("1.5.0")
        try await upload("1.5.0")
        await fails(.deadlineExceeded) {
            try await records.seal(Self.version("1.5.0"), "bell", of: "acme", bounds) { () throws(ApusError) in
                throw ApusError(.deadlineExceeded)
            }
        }
        let number = try await release("1.5.0").image
        #expect(try await records.image(number)?.body.state == .sealing)
        try await upload("1.5.0", chunks: [2])
        #expect(try await records.image(number)?.body.state == .uploading)
        try await seal("1.5.0")
        #expect(try await release("1.5.0").sealed)
    }

    @Test("The same manifest again replaces the descriptions, and another image of the version is refused (IV-E1)")
    func repeated() async throws {
        try await create("1.5.0")
        let number = try await release("1.5.0").image
        try await records.create(
            Self.manifest("1.5.0"), signature: [1], [.with { ($0.language, $0.text) = ("de", "neu") }], url: "",
            of: "acme", bounds)
        #expect(try await release("1.5.0").image == number)
        #expect(try await records.image(number)?.body.descriptions.map(\.text) == ["neu"])
        await fails(.versionConflict) {
            try await records.create(
                Self.manifest("1.5.0", [1, 2, 3]), signature: [1], [], url: "", of: "acme", bounds)
        }
        await fails(.versionConflict) { try await create("1.5.0", url: "https://cdn.example.org/1.5.0") }
    }

    @Test("Bounds hold for an image, a customer and all together, and deleting gives the bytes back (IV-E1)")
    func quotas() async throws {
        await fails(.frameTooLarge) {
            try await records.create(
                Self.manifest("9", [UInt8](repeating: 1, count: 200_001)), signature: [1], [], url: "", of: "acme",
                bounds)
        }
        for version in ["1", "2", "3"] { try await create(version) }
        await fails(.overloaded) { try await create("4") }
        // Elsewhere it uses no bytes of the cluster.
        try await create("4", url: "https://cdn.example.org/4")
        try await create("1", of: "two")
        try await create("1", of: "three")
        await fails(.overloaded) { try await create("1", of: "four") }
        #expect(try await records.totals(of: "four").products == 0)

        try await records.delete(Self.version("2"), "bell", of: "acme", bounds)
        await fails(.overloaded) { try await create("1", of: "four") }
        try await records.sweep(bounds) { _ in false }
        await fails(.overloaded) { try await create("1", of: "four") }
        try await records.sweep(bounds) { _ in true }
        try await create("1", of: "four")
        let totals = try await records.totals(of: "acme")
        #expect(totals.bytes == 200_000 && totals.images == 3 && totals.products == 1)
        for version in ["1", "3", "4"] {
            try await records.delete(Self.version(version), "bell", of: "acme", bounds)
        }
        try await records.sweep(bounds) { _ in true }
        let rest = try await records.totals(of: "acme")
        #expect(rest.bytes == 0 && rest.images == 0 && rest.products == 0)
        #expect(try await records.product("acme", "bell") == nil)
    }

    @Test("Deleting removes all that belongs to an image, and a later image of the version has nothing of it (IV-E1)")
    func deleting() async throws {
        try await create("1.5.0")
        try await upload("1.5.0")
        try await seal("1.5.0")
        let number = try await release("1.5.0").image
        try await records.rollOut(
            Self.version("1.5.0"), FirmwareRule(state: .active), ifRevision: 0, "bell", of: "acme", bounds)
        let offered = try await release("1.5.0")
        for index in 0..<200 {
            let device = DeviceID(unchecked: "cam-\(index)")
            try await records.offered(offered, to: device)
            _ = try await records.report(
                index % 2 == 0, reason: "", by: device, Self.version("1.5.0"), "bell", of: "acme")
        }
        #expect(try await records.count(of: number) == FirmwareCount(installed: 100, failed: 100))
        try await records.delete(Self.version("1.5.0"), "bell", of: "acme", bounds)
        await fails(.targetUnknown) { try await upload("1.5.0") }
        await fails(.targetUnknown) { try await records.offered(offered, to: DeviceID(unchecked: "late")) }
        await fails(.targetUnknown) {
            _ = try await records.report(
                true, reason: "", by: DeviceID(unchecked: "late"), Self.version("1.5.0"), "bell", of: "acme")
        }
        try await create("1.5.0")
        // Another node that does the same finds nothing to do.
        for _ in 0..<2 { try await records.sweep(bounds) { _ in true } }
        for index in 0..<4 { #expect(try await records.chunk(number, UInt64(index)) == nil) }
        #expect(try await records.image(number) == nil)
        #expect(try await records.count(of: number) == FirmwareCount())
        #expect(try await records.offerCount(of: number) == 0)
        let next = try await release("1.5.0")
        #expect(next.image != number && !next.sealed)
        #expect(try await records.totals(of: "acme").images == 1)
    }

    @Test("Each device counts once, by its last outcome, also when devices report at once (IV-E1)", arguments: 1...20)
    func outcomes(seed: UInt64) async throws {
        try await create("1.5.0")
        try await upload("1.5.0")
        try await seal("1.5.0")
        let version = try Self.version("1.5.0")
        let number = try await release("1.5.0").image
        await fails(.targetUnknown) {
            _ = try await records.report(
                true, reason: "", by: DeviceID(unchecked: "cam"), version, "bell", of: "acme")
        }
        try await records.rollOut(version, FirmwareRule(state: .active), ifRevision: 0, "bell", of: "acme", bounds)
        var random = SeededRandom(seed: seed)
        var reports: [String: [Bool]] = [:]
        for _ in 0..<60 {
            reports["cam-\(Int.random(in: 0..<12, using: &random))", default: []].append(Bool.random(using: &random))
        }
        let offered = try await release("1.5.0")
        for device in reports.keys { try await records.offered(offered, to: DeviceID(unchecked: device)) }
        // Reports of a device are in order, and those of several devices at once.
        try await withThrowingTaskGroup(of: Void.self) { group in
            for (device, outcomes) in reports {
                group.addTask { [records] in
                    for outcome in outcomes {
                        _ = try await records.report(
                            outcome, reason: "", by: DeviceID(unchecked: device), version, "bell", of: "acme")
                        let again = try await records.report(
                            outcome, reason: "", by: DeviceID(unchecked: device), version, "bell", of: "acme")
                        #expect(!again)
                    }
                }
            }
            try await group.waitForAll()
        }
        let failed = reports.values.count { $0.last == true }
        for isFailed in [false, true] {
            let expected = reports.filter { !isFailed || $0.value.last == true }.keys.sorted()
            var (found, last): ([String], String?) = ([], nil)
            repeat {
                let page = try await records.outcomes(
                    of: version, "bell", of: "acme", isFailed: isFailed, after: last, limit: 2)
                #expect(page.outcomes.count <= 2)
                #expect(page.outcomes.allSatisfy { $0.failed == (reports[$0.device]?.last == true) })
                found += page.outcomes.map(\.device)
                last = page.next
            } while last != nil
            #expect(found == expected)
        }
        let expected = FirmwareCount(installed: UInt64(reports.count - failed), failed: UInt64(failed))
        #expect(try await records.count(of: number) == expected, "seed \(seed)")
    }

    @Test("A roll-out is stopped once by the failures of its rule (IV-E1)")
    func stopping() async throws {
        try await create("1.5.0", url: "https://cdn.example.org/1.5.0")
        let version = try Self.version("1.5.0")
        let rule = FirmwareRule(state: .active, stopFailures: 2, stopFailurePercent: 50)
        try await records.rollOut(version, rule, ifRevision: 0, "bell", of: "acme", bounds)
        var stops: [Bool] = []
        for (index, failed) in [false, true, true, true, true].enumerated() {
            let device = DeviceID(unchecked: "cam-\(index)")
            try await records.offered(try await release("1.5.0"), to: device)
            _ = try await records.report(failed, reason: "no space", by: device, version, "bell", of: "acme")
            stops.append(try await records.stopIfFailing(version, "bell", of: "acme", bounds))
        }
        #expect(stops == [false, false, true, false, false])
        #expect(try await release("1.5.0").state == .stopped)
    }

    @Test("A device that was not offered the version since its activation is not counted, and stops nothing (IV-E1)")
    func onlyOffers() async throws {
        try await create("1.5.0", url: "https://cdn.example.org/1.5.0")
        let version = try Self.version("1.5.0")
        let rule = FirmwareRule(state: .active, percentage: 1, stopFailures: 1)
        try await records.rollOut(version, rule, ifRevision: 0, "bell", of: "acme", bounds)
        let (thief, chosen) = (DeviceID(unchecked: "thief"), DeviceID(unchecked: "chosen"))
        func report(_ failed: Bool, _ device: DeviceID) async throws {
            _ = try await records.report(failed, reason: "", by: device, version, "bell", of: "acme")
        }
        for failed in [true, false] { await fails(.targetUnknown) { try await report(failed, thief) } }
        #expect(try await !records.stopIfFailing(version, "bell", of: "acme", bounds))
        let first = try await release("1.5.0")
        #expect(try await records.count(of: first.image) == FirmwareCount())
        let page = try await records.outcomes(of: version, "bell", of: "acme", isFailed: false, after: nil, limit: 8)
        #expect(page.outcomes.isEmpty)

        try await records.offered(first, to: chosen)
        // While it is paused, those that were offered it go on.
        let pause = FirmwareRule(state: .paused, percentage: 1, stopFailures: 1)
        try await records.rollOut(version, pause, ifRevision: 0, "bell", of: "acme", bounds)
        try await report(true, chosen)
        try await records.rollOut(version, rule, ifRevision: 0, "bell", of: "acme", bounds)
        #expect(try await records.stopIfFailing(version, "bell", of: "acme", bounds))
        // Activated again, it has offered nothing yet.
        try await records.rollOut(version, rule, ifRevision: 0, "bell", of: "acme", bounds)
        await fails(.targetUnknown) { try await report(true, chosen) }
        #expect(try await release("1.5.0").state == .active)
    }

    @Test("A version that is active again is stopped by as many failures, of the same devices or others (IV-E1)")
    func activations() async throws {
        try await create("1.5.0", url: "https://cdn.example.org/1.5.0")
        let version = try Self.version("1.5.0")
        let rule = FirmwareRule(state: .active, stopFailures: 2)
        func report(_ failed: Bool, _ device: Int) async throws -> Bool {
            try await records.offered(try await release("1.5.0"), to: DeviceID(unchecked: "cam-\(device)"))
            let isCounted = try await records.report(
                failed, reason: "\(device)", by: DeviceID(unchecked: "cam-\(device)"), version, "bell", of: "acme")
            #expect(isCounted, "the outcome of cam-\(device) is one of this activation")
            return try await records.stopIfFailing(version, "bell", of: "acme", bounds)
        }
        // The same devices fail twice, then they install it, and others fail.
        for (outcomes, first) in [([true, true], 0), ([true, true], 0), ([false, false, true, true], 0)] {
            try await records.rollOut(version, rule, ifRevision: 0, "bell", of: "acme", bounds)
            var stops: [Bool] = []
            for (index, failed) in outcomes.enumerated() { stops.append(try await report(failed, first + index)) }
            #expect(stops == [Bool](repeating: false, count: outcomes.count - 1) + [true])
        }
        // Another reason is no other outcome.
        let again = try await records.report(
            true, reason: "other", by: DeviceID(unchecked: "cam-3"), version, "bell", of: "acme")
        #expect(!again)
    }

    @Test("Groups are set, added to and deleted as a whole, and a device is in those that name it (IV-E1)")
    func groups() async throws {
        let devices = (0..<1000).map { DeviceID(unchecked: "cam-\($0)") }
        func set(_ group: String, _ devices: some Collection<DeviceID>, add: Bool = false) async throws -> Int {
            try await records.setGroup(group, to: Array(devices), isAdded: add, "bell", of: "acme", bounds)
        }
        #expect(try await set("beta", devices[..<600]) == 600)
        #expect(try await set("beta", devices[500...], add: true) == 1000)
        #expect(try await records.devices(of: "beta", "bell", of: "acme") == devices.map(\.rawValue).sorted())
        await fails(.overloaded) { _ = try await set("beta", [DeviceID(unchecked: "one-more")], add: true) }
        #expect(try await set("staff", [devices[7]]) == 1)
        func groups(_ device: DeviceID, of customer: String = "acme") async throws -> Set<String> {
            try await records.groups(["beta", "staff", "none"], with: device, customer, "bell")
        }
        #expect(try await groups(devices[7]) == ["beta", "staff"])
        #expect(try await groups(devices[8]) == ["beta"])
        #expect(try await groups(devices[7], of: "other").isEmpty)
        #expect(try await set("beta", [devices[1]]) == 1)
        #expect(try await groups(devices[7]) == ["staff"])
        for group in ["beta", "staff"] {
            try await records.deleteGroup(group, "bell", of: "acme", bounds)
        }
        #expect(try await groups(devices[1]).isEmpty)
        #expect(try await records.product("acme", "bell") == nil)
    }
}
