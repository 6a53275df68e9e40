import ApusContract
import ApusCore
import ApusCrypto
import ApusDevice
import Foundation
import SwiftProtobuf
import Testing

@Suite("What a device checks and keeps of an update (IV-E1)")
struct FirmwareDeviceTests {
    private static let key = Curve25519.Signing.PrivateKey()
    private static let hash = String(repeating: "ab", count: 32)

    private static func version(_ text: String) throws -> FirmwareVersion {
        try FirmwareVersion(checking: text, "the version")
    }

    private static func offer(
        product: String = "bell", version: String = "1.5.0", size: UInt64 = 1000, from: String? = nil,
        key: Curve25519.Signing.PrivateKey = key
    ) throws -> ClientFirmwareOffer {
        let manifest = try FirmwareManifest(
            product: product, version: Self.version(version), size: size, sha256: hash,
            from: from.map { try Self.version($0) })
        let signature = try key.signature(for: Data(manifest.text.utf8))
        return .with { ($0.version, $0.manifest, $0.signature) = (version, manifest.text, signature) }
    }

    private static func check() throws -> FirmwareCheck {
        try FirmwareCheck(key: Array(key.publicKey.rawRepresentation), product: "bell", sizeMax: 1000)
    }

    private func fails(_ code: ErrorCode, _ body: () throws -> Void) {
        #expect(throws: ApusError(code)) { try body() }
    }

    @Test("Only a newer version of the product with the maker's signature is taken (IV-E1)")
    func checks() throws {
        let (check, current) = (try Self.check(), try Self.version("1.4.0"))
        #expect(try check.manifest(of: Self.offer(), current: current).version == Self.version("1.5.0"))
        #expect(try check.manifest(of: Self.offer(from: "1.4"), current: current).size == 1000)
        let other = Curve25519.Signing.PrivateKey()
        fails(.badParameter) { _ = try check.manifest(of: Self.offer(key: other), current: current) }
        fails(.badParameter) { _ = try check.manifest(of: Self.offer(product: "bell-2"), current: current) }
        for version in ["1.4.0", "1.4", "1.3.9", "1.4.0-rc.1"] {
            fails(.badParameter) { _ = try check.manifest(of: Self.offer(version: version), current: current) }
        }
        fails(.badParameter) { _ = try check.manifest(of: Self.offer(from: "1.4.1"), current: current) }
        fails(.frameTooLarge) { _ = try check.manifest(of: Self.offer(size: 1001), current: current) }
        // An older manifest with its signature, offered as a newer version.
        var renamed = try Self.offer(version: "1.5.0")
        renamed.version = "1.6.0"
        fails(.badParameter) { _ = try check.manifest(of: renamed, current: current) }
    }

    @Test("Any changed bit of the manifest or the signature is refused (IV-E1)")
    func bits() throws {
        let (check, offer, current) = (try Self.check(), try Self.offer(), try Self.version("1.4.0"))
        for bit in 0..<(offer.signature.count * 8) {
            var changed = offer
            changed.signature[changed.signature.startIndex + bit / 8] ^= 1 << (bit % 8)
            fails(.badParameter) { _ = try check.manifest(of: changed, current: current) }
        }
        for index in offer.manifest.utf8.indices {
            var changed = offer
            var bytes = Array(offer.manifest.utf8)
            bytes[offer.manifest.utf8.distance(from: offer.manifest.startIndex, to: index)] ^= 1
            changed.manifest = String(decoding: bytes, as: UTF8.self)
            fails(.badParameter) { _ = try check.manifest(of: changed, current: current) }
        }
        var empty = offer
        (empty.signature, empty.manifest) = (Data(), "")
        fails(.badParameter) { _ = try check.manifest(of: empty, current: current) }
    }

    @Test("A key or a product that is none is refused when the updater is made (IV-E1)")
    func keys() {
        for count in [0, 31, 33] {
            fails(.badParameter) {
                _ = try FirmwareCheck(key: [UInt8](repeating: 1, count: count), product: "bell", sizeMax: 1)
            }
        }
        fails(.badParameter) {
            _ = try FirmwareCheck(key: Array(Self.key.publicKey.rawRepresentation), product: "a b", sizeMax: 1)
        }
    }

    @Test("Progress is reported at each state, and while loading at most every 5 percent (IV-E1)")
    func progress() throws {
        var progress = FirmwareProgress(version: try Self.version("1.5.0"))
        var reports = (0...100).compactMap { progress.report(.downloading, percent: $0) }
        #expect(
            reports.first == #"{"stVal":{"version":"1.5.0","state":"downloading","percent":0}}"# && reports.count == 21)
        reports = (0..<3).compactMap { _ in progress.report(.verifying, percent: 100) }
        #expect(reports == [#"{"stVal":{"version":"1.5.0","state":"verifying","percent":100}}"#])
        for state in [FirmwareProgress.State.installing, .done, .failed] {
            let report = progress.report(state, percent: 100)
            #expect(report?.contains(state.rawValue) == true)
        }
    }

    @Test("The part and the state of an update outlast a restart, and damaged files are no obstacle (IV-E1)")
    func files() throws {
        let directory = NSTemporaryDirectory() + "/apus-firmware-\(UUID().uuidString)"
        defer { try? FileManager.default.removeItem(atPath: directory) }
        let files = try FirmwareFiles(directory: directory)
        #expect(files.state() == nil && files.loaded(of: 10) == 0)
        fails(.storageFailed) { _ = try files.hash() }
        try files.write([1, 2, 3], at: 0, isSynced: true)
        try files.write([4, 5], at: 3, isSynced: false)
        var state = FirmwareFiles.State(manifest: "m")
        state.attempts = 2
        try files.save(state)

        let again = try FirmwareFiles(directory: directory)
        #expect(again.state() == state && again.loaded(of: 5) == 5)
        // sha256sum of the bytes 1 to 5.
        #expect(try again.hash() == "74f81fe167d99b4cb41d6d0ccda82278caee9f3e2f25d5e5a3936ff3dcec60d0")
        // Longer than the image: it is not of it.
        #expect(again.loaded(of: 4) == 0 && again.loaded(of: 5) == 0)
        try Data("{".utf8).write(to: URL(fileURLWithPath: directory + "/firmware.json"))
        #expect(again.state() == nil)
        try again.save(nil)
        try again.save(nil)
        #expect(again.state() == nil)
        fails(.storageFailed) { _ = try FirmwareFiles(directory: "/dev/null/none") }
    }
}
