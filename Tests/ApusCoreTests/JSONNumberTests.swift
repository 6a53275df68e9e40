import ApusCore
import Testing

@Suite("JSON numbers, exactly (JSON Schema 2020-12 §6.2)")
struct JSONNumberTests {
    private static func number(_ text: String) throws -> JSONNumber { try #require(JSONNumber(text), "\(text)") }

    /// In their order.
    private static let ascending = [
        "-1e400", "-9007199254740993", "-9007199254740992", "-12", "-2.5", "-2", "-1e-400", "0", "1e-99999999999999999",
        "1e-400", "0.1", "0.10000000000000000000000001", "1", "1.5", "9.99", "10", "99", "1e2",
        "9007199254740992", "9007199254740993", "123456789012345678901234567890", "1e400", "2e400",
        "1e99999999999999999999999999999",
    ]

    @Test("Every number is less than those after it, however long, large or small it is")
    func order() throws {
        for (index, left) in Self.ascending.enumerated() {
            for (other, right) in Self.ascending.enumerated() {
                let (one, two) = (try Self.number(left), try Self.number(right))
                #expect((one < two) == (index < other), "\(left) < \(right)")
                #expect((one == two) == (index == other), "\(left) == \(right)")
            }
        }
    }

    @Test(
        "Notations of one number are equal, and have one hash",
        arguments: [
            ["1", "1.0", "10e-1", "0.1e1", "1E0", "1e+0"], ["0", "-0", "0.0", "0e999", "-0.00e-5"],
            ["-120", "-1.2e2", "-1200e-1"], ["1e400", "10e399", "0.001e403"],
        ])
    func notations(texts: [String]) throws {
        let numbers = try texts.map { try Self.number($0) }
        #expect(Set(numbers).count == 1)
        for number in numbers { #expect(!(number < numbers[0]) && !(numbers[0] < number)) }
        #expect(numbers.map(\.description) == texts)
    }

    @Test("1.0, 10e-1 and 1e400 are integers, 1.5 and 1e-1 are none")
    func integers() throws {
        for text in ["0", "-0.0", "1", "-7", "1.0", "10e-1", "1e400", "1.50e1", "123456789012345678901234567890"] {
            #expect(try Self.number(text).isInteger, "\(text)")
        }
        for text in ["1.5", "1e-1", "-0.1", "15e-1", "1e-400"] {
            #expect(try !Self.number(text).isInteger, "\(text)")
        }
    }

    @Test("A count is an integer of at least 0; one that no text can have is the greatest")
    func counts() throws {
        let counts = [
            ("0", 0), ("12", 12), ("1.2e3", 1200), ("100e-2", 1), ("999999999999999999", 999_999_999_999_999_999),
        ]
        for (text, count) in counts { #expect(try Self.number(text).count == count, "\(text)") }
        #expect(try Self.number("1e400").count == .max)
        #expect(try Self.number("9223372036854775808").count == .max)
        for text in ["-1", "1.5", "1e-2"] { #expect(try Self.number(text).count == nil, "\(text)") }
    }

    @Test("What is no number, or is longer than JSON values may be, is none")
    func noNumbers() {
        for text in ["", "-", ".5", "1.", "1e", "a", "1 ", "0x10", "1e5.5", String(repeating: "1", count: 33)] {
            #expect(JSONNumber(text) == nil, "\(text)")
        }
    }

    @Test("The order of integers and halves is that of the numbers themselves", arguments: 0..<50)
    func random(seed: Int) throws {
        var random = SeededRandom(seed: UInt64(seed))
        for _ in 0..<50 {
            let (one, two) = (Int.random(in: -40...40, using: &random), Int.random(in: -40...40, using: &random))
            let (left, right) = (try Self.number(Self.halves(one)), try Self.number(Self.halves(two)))
            #expect((left < right) == (one < two) && (left == right) == (one == two), "\(left) and \(right)")
        }
    }

    /// `count` halves, in one of two notations.
    private static func halves(_ count: Int) -> String {
        count % 4 == 0 ? "\(count * 5)e-1" : "\(Double(count) / 2)"
    }
}
