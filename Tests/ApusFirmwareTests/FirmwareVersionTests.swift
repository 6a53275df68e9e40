import ApusContract
import ApusCore
import Testing

@Suite("Versions and manifests of firmware (IV-E1)")
struct FirmwareVersionTests {
    private static func version(_ text: String) throws -> FirmwareVersion {
        try #require(FirmwareVersion(text), "\(text)")
    }

    @Test("Versions are in the order of their numbers, and a suffix is before none (IV-E1)")
    func order() throws {
        let texts = [
            "0", "0.0.0.1", "0.1", "1.0.0-1", "1.0.0-2", "1.0.0-10", "1.0.0-alpha", "1.0.0-alpha.1", "1.0.0-alpha.2",
            "1.0.0-alpha.b", "1.0.0-beta", "1.0.0", "1.0.0.1", "1.0.1", "1.2", "1.10", "2-rc.1", "2", "10",
            "999999999",
        ]
        let versions = try texts.map { try Self.version($0) }
        for (left, index) in zip(versions, 0...) {
            for right in versions[(index + 1)...] {
                #expect(left < right && !(right < left) && left != right, "\(left) \(right)")
            }
        }
        #expect(versions.shuffled().sorted() == versions)
    }

    @Test("Missing numbers are 0: two texts of one version are equal, and have one hash (IV-E1)")
    func equal() throws {
        for (left, right) in [("1", "1.0.0.0"), ("1.5", "1.5.0"), ("1.5-a", "1.5.0.0-a")] {
            let (left, right) = (try Self.version(left), try Self.version(right))
            #expect(left == right && left.hashValue == right.hashValue && !(left < right) && !(right < left))
            #expect(left.description != right.description)
        }
    }

    @Test(
        "What is no version is refused (IV-E1)",
        arguments: [
            "", ".", "1.", ".1", "1..2", "1.2.3.4.5", "01", "1.02", "1234567890", "-1", "1-", "1-a..b", "1-.a", "1-a.",
            "1-01", "1.x", "v1", "1 ", " 1", "+1", "1-a_b", "1-ä", "١", "1/2", "1-\(String(repeating: "a", count: 33))",
        ])
    func refused(text: String) {
        #expect(FirmwareVersion(text) == nil)
        #expect(throws: ApusError(.badParameter)) { _ = try FirmwareVersion(checking: text, "the version") }
    }

    @Test("The documents describe exactly the versions that are accepted (IV-E1)")
    func pattern() throws {
        let rule = try #require(ClientQueryFirmwareRequest.info.fields["current_version"]?.pattern)
        let regex = try Regex(rule)
        var random = SeededRandom(seed: 7)
        var counts = [false: 0, true: 0]
        for _ in 0..<20_000 {
            let text = String(
                (0..<Int.random(in: 1...40, using: &random)).map { index in
                    // Digits and dots first, so that half of them are versions.
                    (index < 3 ? "0123.-" : "0019aZ.-").randomElement(using: &random) ?? "0"
                })
            let isVersion = FirmwareVersion(text) != nil
            counts[isVersion, default: 0] += 1
            #expect((try regex.wholeMatch(in: text) != nil) == isVersion, "\(text)")
        }
        #expect(counts.values.allSatisfy { $0 > 1000 }, "\(counts)")
    }

    @Test("A manifest has one text, and is read from no other (IV-E1)")
    func manifest() throws {
        let hash = String(repeating: "0a", count: 32)
        let manifest = try FirmwareManifest(
            product: "acme-doorbell-2", version: Self.version("1.5.0"), size: 1_048_576, sha256: hash,
            from: Self.version("1.2"))
        let text =
            #"{"product":"acme-doorbell-2","version":"1.5.0","size":1048576,"sha256":"\#(hash)","from":"1.2"}"#
        #expect(manifest.text == text)
        #expect(try FirmwareManifest(text: text) == manifest)
        let any = text.replacing(#""1.2""#, with: #""""#)
        #expect(try FirmwareManifest(text: any).from == nil)
        // One byte more, less or another anywhere: it is no manifest, or another one.
        for index in text.indices {
            var shorter = text
            shorter.remove(at: index)
            #expect((try? FirmwareManifest(text: shorter)) != manifest)
            var spaced = text
            spaced.insert(" ", at: index)
            #expect(throws: ApusError(.badParameter)) { _ = try FirmwareManifest(text: spaced) }
        }
        for wrong in [
            "", "{}", text + "\n", text + text, text.replacing("1048576", with: "01048576"),
            text.replacing("1048576", with: "-1"), text.replacing("1048576", with: "0"),
            text.replacing("1048576", with: "18446744073709551616"), text.replacing("0a", with: "0A"),
            text.replacing("acme-doorbell-2", with: "acme doorbell"), text.replacing(#""1.2""#, with: #""1.5.0""#),
            text.replacing(#""1.2""#, with: #""2""#), text.replacing(#""from""#, with: #""From""#),
        ] {
            #expect(throws: ApusError(.badParameter), "\(wrong)") { _ = try FirmwareManifest(text: wrong) }
        }
    }
}
