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

    @Test("The channel of a call has the name, the shard and the text that it has in earlier releases (D3, CALL-13)")
    func callChannel() throws {
        let call = CallID(unchecked: "0ab-0123456789abcdef0123456789abcdef")
        let channel = ChannelID(call: call, side: .winner)
        let name = "call.0ab-0123456789abcdef0123456789abcdef"
        #expect(channel.owner.wireName == name && channel.description == "\(name)/1" && channel.device == nil)
        #expect(channel.shard == ShardID(of: DeviceID(unchecked: name)))
        #expect(ChannelID(wireName: name, source: 1) == channel)
        #expect(ChannelID(call: call, side: ChannelSide.winner.other).source == 0)
        // A client that names it as a device has not named a device.
        #expect(ChannelID(device: name, source: 1) == nil)
    }

    @Test(
        "Names that are not those of calls are devices",
        arguments: [
            "call", "call.", "call.0ab-0123456789abcdef0123456789abcde", "call.0ab-0123456789abcdef0123456789abcdef0",
            "call.0ab0123456789abcdef-0123456789abcdef", "xall.0ab-0123456789abcdef0123456789abcdef",
        ])
    func devices(name: String) {
        let device = DeviceID(unchecked: name)
        #expect(ChannelOwner(wireName: name) == .device(device) && !ChannelOwner.isReserved(device))
        #expect(ChannelID(device: name, source: 2)?.device == device)
        #expect(ChannelID(wireName: name, source: 2)?.shard == ShardID(of: device))
    }
}
