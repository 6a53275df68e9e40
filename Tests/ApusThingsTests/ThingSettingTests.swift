import ApusCore
import ApusThings
import Testing

/// Random writers and a device that loses its connection, against what each of them was told.
@Suite("Settings, writers and a device that comes and goes")
struct ThingSettingTests {
    private struct Randomness: RandomNumberGenerator {
        var state: UInt64
        mutating func next() -> UInt64 {
            state &+= 0x9E37_79B9_7F4A_7C15
            var z = state
            z = (z ^ (z >> 30)) &* 0xBF58_476D_1CE4_E5B9
            z = (z ^ (z >> 27)) &* 0x94D0_49BB_1331_11EB
            return z ^ (z >> 31)
        }
    }

    private struct Device {
        var value = 0
        /// Events that were sent to it and that it has not handled yet.
        var queue: [(value: Int, version: UInt64)] = []
        var isConnected = true
    }

    @Test("In the end the device has the value of the last writer, or of its own change after it", arguments: 0..<200)
    func converges(seed: Int) throws {
        var random = Randomness(state: UInt64(seed))
        var model = ThingState()
        let path = try ThingPath("ProWritable.level")
        _ = try model.report(path, #"{"setVal":0}"#, received: 0, time: 0)
        var device = Device()
        var expected = 0
        for _ in 1...200 {
            switch UInt8.random(in: 0..<10, using: &random) {
            case 0..<3:
                // Often the value that it had before.
                expected = Int.random(in: 0..<4, using: &random)
                let changed = try model.write(path, "{\"setVal\":\(expected)}", ifVersion: 0, time: 0)
                let isChanged = changed.version > changed.previousVersion
                if device.isConnected, isChanged { device.queue.append((expected, changed.version)) }
            case 3..<6:
                guard device.isConnected, !device.queue.isEmpty else { break }
                let event = device.queue.removeFirst()
                device.value = event.value
                try report(&model, device, path, received: event.version)
            case 6:
                // Somebody turns the knob at the device, which is offline or has not received everything.
                device.value = Int.random(in: 0..<6, using: &random)
                guard device.isConnected else { break }
                let isPending = !model.pending.isEmpty
                try report(&model, device, path, received: 0)
                if !isPending { expected = device.value }
            case 7:
                device.isConnected = false
                device.queue = []
            default:
                guard !device.isConnected else { break }
                device.isConnected = true
                let isPending = !model.pending.isEmpty
                try connect(&model, &device, path)
                if !isPending { expected = device.value }
            }
            #expect(try model.read(path.appending("setVal"), online: ThingLeaf()).json == "\(expected)")
        }
        device.isConnected = true
        let isPending = !model.pending.isEmpty
        try connect(&model, &device, path)
        if !isPending { expected = device.value }
        #expect(model.pending.isEmpty)
        #expect(device.value == expected)
        #expect(try model.read(path.appending("setVal"), online: ThingLeaf()).json == "\(expected)")
    }

    private func report(
        _ model: inout ThingState, _ device: Device, _ path: ThingPath, received: UInt64
    ) throws {
        _ = try model.report(path, "{\"setVal\":\(device.value)}", received: received, time: 0)
    }

    /// A device that connects applies what is pending; if nothing is, it reports what it has.
    private func connect(_ model: inout ThingState, _ device: inout Device, _ path: ThingPath) throws {
        device.queue = []
        guard let setting = model.pending.first else { return try report(&model, device, path, received: 0) }
        device.value = try #require(Int(setting.value))
        try report(&model, device, path, received: setting.version)
    }
}

extension ThingPath {
    fileprivate func appending(_ field: String) throws -> ThingPath { try ThingPath("\(self).\(field)") }
}
