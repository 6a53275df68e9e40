import ApusCore
import Testing

@Suite("Identifiers")
struct IdentifiersTests {
    @Test("A parameter that is no identifier is refused with its name and the limits, and without its text")
    func checking() throws {
        #expect(try DeviceID(checking: "front-door.1_A", "the device's id").rawValue == "front-door.1_A")
        #expect(try DeviceID(checking: String(repeating: "a", count: 63), "the device's id").rawValue.count == 63)
        for text in ["", String(repeating: "a", count: 64), "a b", "a/b", "é", "a\n"] {
            let error = #expect(throws: ApusError.self) { try DeviceID(checking: text, "the device's id") }
            #expect(error?.code == .badParameter)
            #expect(error?.message == "the device's id must be \(DeviceID.limits)")
        }
    }

    @Test("A channel in a message has a valid device and a source of 16 bits")
    func channel() {
        #expect(ChannelID(device: "cam", source: 65_535)?.description == "cam/65535")
        #expect(ChannelID(device: "cam", source: 65_536) == nil)
        #expect(ChannelID(device: "c m", source: 0) == nil)
    }
}
