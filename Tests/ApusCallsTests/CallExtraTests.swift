import ApusCalls
import ApusCore
import Foundation
import Testing

@Suite("The extra of a call (CALL-3, CALL-16)")
struct CallExtraTests {
    private func extra(_ text: String) throws -> CallExtra { try CallExtra(Data(text.utf8)) }

    @Test("CALL-3: the members of the contract are read, and the text is kept byte for byte")
    func members() throws {
        let text = #"{"bizType":"screen_ipc", "channelType":2,"category":"sp_dpsxj","keepConnect":false,"x":[1]}"#
        let extra = try extra(text)
        #expect(extra.bizType == "screen_ipc" && extra.channelType == 2 && extra.category == "sp_dpsxj")
        #expect(!extra.keepConnect && extra.bytes == Data(text.utf8))
        #expect(try self.extra(#"{"keepConnect":true}"#).keepConnect)
        let none = try CallExtra()
        #expect(none.bytes.isEmpty && none.bizType == nil && !none.keepConnect)
    }

    @Test(
        "CALL-3: what is no JSON object, is nested too deeply, or has members of other types is refused with -2500",
        arguments: [
            "[]", "1", "null", "\"a\"", "{", "{}x", " ", #"{"a":1,"a":2}"#, "{\"a\":\"\u{1}\"}", #"{"bizType":1}"#,
            #"{"channelType":"2"}"#, #"{"channelType":1.5}"#, #"{"category":null}"#, #"{"keepConnect":"false"}"#,
            #"{"keepConnect":0}"#, String(repeating: #"{"a":"#, count: 9) + "1" + String(repeating: "}", count: 9),
            String(repeating: "[", count: 4096),
        ])
    func refused(text: String) { expectRefused(.callParametersInvalid) { _ = try extra(text) } }

    @Test("CALL-3: 4 KiB are accepted, and one byte more is refused with -2500")
    func size() throws {
        let frame = #"{"a":""}"#
        let text = #"{"a":""# + String(repeating: "x", count: 4096 - frame.utf8.count) + #""}"#
        #expect(try extra(text).bytes.count == 4096)
        expectRefused(.callParametersInvalid) { _ = try extra(text + " ") }
    }

    @Test("CALL-3: random bytes are read or refused, and nothing else happens")
    func random() {
        var random = SeededRandom(seed: 16)
        let alphabet = Array(#"{}[]",:0123456789.eE+-truefalsn\u bizTypekeepConnect"#.utf8)
        var readCount = 0
        for round in 0..<20_000 {
            let count = Int(random.next() % 64)
            var bytes = (0..<count).map { _ -> UInt8 in
                let number = random.next()
                return round % 2 == 0
                    ? UInt8(truncatingIfNeeded: number) : alphabet[Int(number % UInt64(alphabet.count))]
            }
            if round % 3 == 0 { bytes = Array(#"{"keepConnect":"#.utf8) + bytes + Array("}".utf8) }
            if (try? CallExtra(Data(bytes))) != nil { readCount += 1 }
        }
        #expect(readCount > 10)
    }
}
