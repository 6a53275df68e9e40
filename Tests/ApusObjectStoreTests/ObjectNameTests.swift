import ApusCore
import ApusObjectStore
import Testing

@Suite("Names of objects")
struct ObjectNameTests {
    @Test(
        "Letters, digits and four signs in up to eight parts are a name",
        arguments: ["a", "a/b", "A9._-=/x", "1/2/3/4/5/6/7/8", String(repeating: "x", count: 100)])
    func valid(_ text: String) throws { #expect(try ObjectName(text).text == text) }

    @Test(
        "Other texts are refused with 21031",
        arguments: [
            "", "/", "a/", "/a", "a//b", ".a", "a/..", "a/../b", "a b", "a+", "a\u{0}", "ä", "a\n", "a%2f", "a\\b",
            "1/2/3/4/5/6/7/8/9", String(repeating: "x", count: 101),
            (0..<8).map { _ in String(repeating: "x", count: 70) }.joined(separator: "/"),
        ])
    func invalid(_ text: String) {
        #expect(throws: ApusError(.badParameter)) { try ObjectName(text) }
    }

    @Test("Any text becomes one part, and different texts become different ones")
    func parts() throws {
        var generator = SeededRandom(seed: 1)
        var texts = [
            "", ".", "..", "=", "=3D", "a/b", "a=2Fb", "a+b", "ä", "a\u{308}", String(repeating: "/", count: 99),
        ]
        texts += (30..<60).map { String(repeating: "é", count: $0) }
        texts += (90..<130).map { String(repeating: "x", count: $0) }
        texts += (0..<500).map { _ in
            let count = Int.random(in: 0...40, using: &generator)
            return String(
                decoding: (0..<count).map { _ in UInt8.random(in: 0...127, using: &generator) }, as: UTF8.self)
        }
        let distinct = Set(texts.map(ExactText.init))
        let parts = try distinct.map { try ObjectName(ObjectName.part($0.string)).text }
        #expect(Set(parts).count == distinct.count)
        #expect(parts.allSatisfy { !$0.contains("/") })
        #expect(ObjectName.part("cam-1.0") == "cam-1.0")
    }

    @Test("Names are ordered by their bytes, as S3 lists them")
    func order() throws {
        let names = try ["a/b", "a/b-1", "a/b.x", "a/b/c", "a/b=", "a/bc", "b"].map { try ObjectName($0) }
        #expect(names.shuffled().sorted() == names)
    }
}
