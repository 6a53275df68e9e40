import ApusClient
import ApusCore
import ApusLocal
import ArgumentParser
import Foundation

/// `apus property local-access DEVICE --save FILE` (IV-D14, docs/local-access.md)
struct PropertyLocalAccess: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "local-access",
        abstract: "Ask a device for access over the network that both are in, for `apus property set --local`.")
    @OptionGroup var options: PropertyOptions
    @Option(help: "Write the access to this file. Whoever has it can change the settings of the device.")
    var save: String

    private struct Report: Encodable {
        var device: String
        var addresses: [String]
        var expires: String
    }

    func run() async throws {
        try await options.run { [output = options.output, save] session, device throws(ApusError) in
            let access = try await session.localAccess(to: device)
            let text = try OutputOptions.text(access)
            try? FileManager.default.removeItem(atPath: save)
            guard PrivateFile.create(save, Array(text.utf8)) else {
                throw ApusError(.storageFailed, "\(save) cannot be written")
            }
            let expires = access.expires.ISO8601Format()
            try output.show(
                Report(
                    device: device.rawValue, addresses: access.addresses.map(\.description), expires: expires),
                ["Access to \(device) until \(expires) is in \(save)."])
        }
    }

    private struct WriteReport: Encodable {
        var path: String
        var json: JSONText
    }

    /// `apus property set --local FILE`
    ///
    /// - Throws: 10022 if the file has no access to the device, otherwise as
    ///   ``LocalAccess/writeProperty(path:json:timeout:)``.
    static func write(
        _ path: String, _ json: String, to device: DeviceID, with file: String, _ output: OutputOptions
    ) async throws(ApusError) {
        let found = FileManager.default.contents(atPath: file)
            .flatMap { try? JSONDecoder().decode(LocalAccess.self, from: $0) }
        guard let access = found, access.device == device else {
            throw ApusError(.configurationInvalid, "\(file) has no access to \(device)")
        }
        let value = try await access.writeProperty(path: path, json: json)
        try output.show(WriteReport(path: path, json: JSONText(value)), ["Written. The device has \(value)."])
    }
}
