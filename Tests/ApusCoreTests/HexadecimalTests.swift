import ApusCore
import Testing

@Suite("Hexadecimal digits")
struct HexadecimalTests {
    @Test("Bytes are read as they were written, in both cases; anything else is refused")
    func bothWays() {
        let all = (0...255).map { UInt8($0) }
        let text = Hexadecimal.text(all)
        #expect(text.hasPrefix("000102") && text.hasSuffix("fdfeff"))
        #expect(Hexadecimal.bytes(text) == all && Hexadecimal.bytes(text.uppercased()) == all)
        #expect(Hexadecimal.bytes("") == [])
        for wrong in ["0", "0g", "+1", "0x", "abc", " 1", "é"] { #expect(Hexadecimal.bytes(wrong) == nil, "\(wrong)") }
    }
}
