import ApusStorage
import Testing

@Suite("Ordered keys")
struct OrderedKeyTests {
    @Test("Bytes sort as the tuples do")
    func order() {
        let sorted: [OrderedKey] = [
            OrderedKey(),
            OrderedKey(.bytes([])), OrderedKey(.bytes([0])), OrderedKey(.bytes([0, 0])), OrderedKey(.bytes([0, 1])),
            OrderedKey(.bytes([1])), OrderedKey(.bytes([0xFF])),
            OrderedKey(.text("")), OrderedKey(.text("\0")), OrderedKey(.text("a")), OrderedKey(.text("a"), .signed(-1)),
            OrderedKey(.text("a"), .signed(0)), OrderedKey(.text("a\0")), OrderedKey(.text("aa")),
            OrderedKey(.text("b")), OrderedKey(.text("é")),
            OrderedKey(.signed(.min)), OrderedKey(.signed(-256)), OrderedKey(.signed(-1)), OrderedKey(.signed(0)),
            OrderedKey(.signed(0), .unsigned(0)), OrderedKey(.signed(1)), OrderedKey(.signed(.max)),
            OrderedKey(.unsigned(0)), OrderedKey(.unsigned(255)), OrderedKey(.unsigned(256)),
            OrderedKey(.unsigned(.max)),
        ]
        for (index, left) in sorted.enumerated() {
            for right in sorted[(index + 1)...] { #expect(left < right && !(right < left), "\(left) < \(right)") }
        }
    }

    @Test("The parts are read back from the bytes, and cut or foreign bytes are none")
    func parts() {
        let parts: [OrderedKey.Part] = [
            .text("a\0b"), .bytes([0, 0xFF, 0]), .signed(-7), .unsigned(.max), .text(""),
        ]
        let key = OrderedKey(parts)
        #expect(key.parts == parts)
        for length in 1..<key.bytes.count {
            let cut = OrderedKey(stored: Array(key.bytes.prefix(length)))
            #expect(cut.parts != parts)
        }
        #expect(OrderedKey(stored: [0x03]).parts == nil)
        #expect(OrderedKey(stored: [0x02, 0xC3, 0x28, 0]).parts == nil, "that is no UTF-8")
        #expect(OrderedKey(.text("door"), .signed(-1)).description == "door/-1")
    }

    @Test("Every key with a prefix stands between the prefix and its end")
    func prefix() {
        let prefix = OrderedKey(.text("acme"))
        for key in [OrderedKey(.text("acme"), .text("a")), OrderedKey(.text("acme"), .unsigned(.max))] {
            #expect(prefix < key && key < prefix.end)
        }
        for other in [OrderedKey(.text("acmf")), OrderedKey(.text("acme2"), .text("a")), OrderedKey(.text("acm"))] {
            #expect(!(prefix < other && other < prefix.end), "\(other)")
        }
    }
}
