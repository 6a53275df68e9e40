import ApusConfiguration
import ApusCore

/// A settings file is read, or refused with a sentence; it never stops the process.
func fuzzConfiguration(_ input: [UInt8]) {
    let yaml = String(decoding: input, as: UTF8.self)
    guard var reader = try? ConfigurationReader(yaml: yaml, source: "node.yaml", environment: [:]) else { return }
    _ = try? reader.identifier("node", as: NodeName.self)
    _ = try? reader.int("weight", default: 100, in: 1...10_000)
    _ = try? reader.hostPort("listen.transport")
    _ = try? reader.bytes("transport.frame_bytes_max", default: 1)
    _ = try? reader.duration("membership.heartbeat", default: .zero)
    _ = try? reader.choice("log_level", of: ["info", "debug"], default: "info")
    try? reader.finish()
}
