import ApusCore
import Testing

@Suite("Texts that are compared by their bytes")
struct ExactTextTests {
    /// é in two normalizations, and Å in three, of which two have the same number of bytes.
    private static let pairs = [("caf\u{e9}", "cafe\u{301}"), ("\u{212b}", "A\u{30a}"), ("\u{212b}", "\u{c5}")]

    @Test("Two normalizations of a text are two texts, two keys, and ordered by their bytes", arguments: pairs)
    func compare(one: String, other: String) throws {
        // What this is for.
        #expect(one == other)
        #expect(!one.isExactly(other) && !other.isExactly(one))
        #expect(one.isExactly(String(decoding: Array(one.utf8), as: UTF8.self)))
        let (first, second) = (ExactText(one), ExactText(other))
        try #require(first != second)
        #expect((first < second) != (second < first))
        #expect(Set([first, second, ExactText(one)]).count == 2)
        #expect([first: 1, second: 2][second] == 2)
    }

    @Test("Texts of different bytes are different, and one is the beginning of another")
    func differences() {
        #expect(!"a".isExactly("b") && !"a".isExactly("ab") && "".isExactly(""))
        #expect(ExactText("a") < ExactText("ab") && !(ExactText("ab") < ExactText("a")))
    }

    @Test("A separator separates, whatever follows it")
    func parts() {
        #expect("a.b..c".parts(separatedBy: ".") == ["a", "b", "", "c"])
        #expect("".parts(separatedBy: ".") == [""])
        let parts = "a.\u{301}b".parts(separatedBy: ".")
        #expect(parts.map { Array($0.utf8) } == [Array("a".utf8), Array("\u{301}b".utf8)])
    }
}
