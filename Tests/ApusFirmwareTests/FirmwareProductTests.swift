import ApusContract
import ApusCore
import ApusFirmware
import SwiftProtobuf
import Testing

@Suite("The versions of a product and their descriptions (IV-E1)")
struct FirmwareProductTests {
    private static func manifest(_ version: String) throws -> FirmwareManifest {
        try FirmwareManifest(
            product: "bell", version: FirmwareVersion(checking: version, "the version"), size: 10,
            sha256: String(repeating: "0", count: 64), from: nil)
    }

    private static func version(_ text: String) throws -> FirmwareVersion {
        try FirmwareVersion(checking: text, "the version")
    }

    private func fails(_ code: ErrorCode, _ body: () throws -> Void) {
        #expect(throws: ApusError(code)) { try body() }
    }

    @Test("Versions are kept in order, one of each, and at most 16 (IV-E1)")
    func versions() throws {
        var product = FirmwareProduct()
        for (index, version) in ["1.10", "1.2", "1.2.0-rc.1", "0.9"].enumerated() {
            try product.add(Self.manifest(version), image: UInt64(index), isSealed: false)
        }
        #expect(product.releases.map(\.version) == ["0.9", "1.2.0-rc.1", "1.2", "1.10"])
        #expect(product.releases.allSatisfy { $0.state == .draft && $0.revision == 1 })
        fails(.versionConflict) { try product.add(Self.manifest("1.2.0"), image: 9, isSealed: false) }
        for index in 0..<12 { try product.add(Self.manifest("2.\(index)"), image: 0, isSealed: false) }
        fails(.overloaded) { try product.add(Self.manifest("3"), image: 9, isSealed: false) }
        _ = try product.remove(Self.version("0.9.0"))
        try product.add(Self.manifest("3"), image: 9, isSealed: false)
        fails(.targetUnknown) { _ = try product.remove(Self.version("0.9")) }
    }

    @Test("A roll-out needs a sealed image, the right revision, known groups and a state (IV-E1)")
    func rules() throws {
        var product = FirmwareProduct()
        let version = try Self.version("1.5")
        try product.add(Self.manifest("1.5.0"), image: 1, isSealed: false)
        let none = FirmwareCount()
        func isStopped(_ tally: FirmwareCount) -> Bool { product.stopIfFailing(version, tally: tally) }
        func rollOut(
            _ state: FirmwareRollOutState, groups: [String] = [], ifRevision: UInt64 = 0, _ tally: FirmwareCount
        ) throws {
            try product.rollOut(
                version, FirmwareRule(state: state, groups: groups, stopFailures: 1), ifRevision: ifRevision,
                tally: tally)
        }
        fails(.versionConflict) { try rollOut(.active, none) }
        fails(.targetUnknown) { try product.seal(version, image: 2) }
        try product.seal(version, image: 1)
        #expect(product.releases[0].revision == 2)
        fails(.versionConflict) { try rollOut(.active, ifRevision: 1, none) }
        fails(.targetUnknown) { try rollOut(.active, groups: ["beta"], none) }
        fails(.badParameter) { try rollOut(.unspecified, none) }
        try rollOut(.active, ifRevision: 2, none)
        #expect(product.releases[0].revision == 3)
        // The same again changes nothing.
        try rollOut(.active, none)
        #expect(product.releases[0].revision == 3)
        fails(.versionConflict) { try rollOut(.draft, none) }

        // It stops by itself, and what has failed before does not count when it is active again.
        let failed = FirmwareCount(installed: 0, failed: 1)
        #expect(!isStopped(none))
        #expect(isStopped(failed))
        #expect(product.releases[0].state == .stopped && product.releases[0].revision == 4)
        #expect(!isStopped(failed))
        try rollOut(.active, failed)
        #expect(!isStopped(failed))
        // A pause does not forget.
        try rollOut(.paused, failed)
        try rollOut(.active, FirmwareCount(installed: 0, failed: 2))
        #expect(product.releases[0].failedBefore == 1)
        #expect(isStopped(FirmwareCount(installed: 0, failed: 2)))

        // It can be stopped although a group of its rule was deleted.
        try product.setGroup("beta", count: 1)
        try rollOut(.active, groups: ["beta"], none)
        try product.setGroup("beta", count: nil)
        try rollOut(.stopped, groups: ["beta"], none)
        #expect(product.releases[0].state == .stopped)
        fails(.targetUnknown) { try rollOut(.active, groups: ["beta"], none) }
    }

    @Test("At most 32 groups of at most 1,000 devices (IV-E1)")
    func groups() throws {
        var product = FirmwareProduct()
        for index in 0..<32 { try product.setGroup("g\(index)", count: 1000) }
        fails(.overloaded) { try product.setGroup("one-more", count: 1) }
        fails(.overloaded) { try product.setGroup("g0", count: 1001) }
        fails(.targetUnknown) { try product.setGroup("one-more", count: nil) }
        // A change of the devices changes the record, also where their number is the same.
        let before = product
        try product.setGroup("g0", count: 1000)
        #expect(product != before)
        try product.setGroup("g0", count: nil)
        try product.setGroup("a", count: 0)
        #expect(product.groups.first?.name == "a" && product.groups.count == 32 && !product.isEmpty)
    }

    @Test("The description fits the language best: itself, its primary language, English, the first (IV-E1)")
    func languages() {
        func text(_ language: String, _ known: [String]) -> String {
            FirmwareLanguage.choose(
                language, of: known.map { known in .with { ($0.language, $0.text) = (known, "in \(known)") } })
        }
        let known = ["zh-Hans", "de", "pt-BR", "en", "de-AT"]
        let cases = [
            ("de", "de"), ("DE-at", "de-AT"), ("de-CH", "de"), ("pt", "pt-BR"), ("pt-PT", "pt-BR"), ("zh", "zh-Hans"),
            ("fr", "en"), ("", "en"), ("d", "en"),
        ]
        for (language, expected) in cases { #expect(text(language, known) == "in \(expected)", "\(language)") }
        #expect(text("fr", ["ja", "en-GB"]) == "in en-GB")
        #expect(text("fr", ["ja", "ko"]) == "in ja")
        #expect(text("fr", []).isEmpty)
    }

    @Test("Descriptions have bounds, and one for each language (IV-E1)")
    func descriptions() throws {
        func check(_ texts: [(String, String)]) throws {
            try FirmwareLanguage.check(texts.map { text in .with { ($0.language, $0.text) = text } })
        }
        try check((0..<16).map { ("l\($0)", String(repeating: "x", count: 2048)) })
        fails(.frameTooLarge) { try check((0..<17).map { ("l\($0)", "") }) }
        fails(.frameTooLarge) { try check([("en", String(repeating: "ä", count: 1025))]) }
        for tags in [[""], ["en", "EN"], ["e n"], [String(repeating: "a", count: 36)], ["ä"]] {
            fails(.badParameter) { try check(tags.map { ($0, "text") }) }
        }
    }
}
