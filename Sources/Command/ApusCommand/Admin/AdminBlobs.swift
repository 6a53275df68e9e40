import ApusCore
import ApusNodeConfiguration
import ApusStorage
import ArgumentParser
import Foundation

/// `apus admin blobs`: blobs, by the SHA-256 of their content.
struct AdminBlobs: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "blobs", abstract: "List, add, print and remove blobs of a cluster.",
        discussion: "Works on the machine with the blobs, whether the cluster is running or not.",
        subcommands: [AdminBlobsList.self, AdminBlobsPut.self, AdminBlobsGet.self, AdminBlobsRemove.self])

    static func open(_ records: RecordsOption) async throws(ApusError) -> DirectoryBlobStore {
        let configuration = try records.configuration
        return try await DirectoryBlobStore(path: configuration.blobsDirectory, limits: configuration.blobs)
    }

    static func id(_ text: String) throws(ApusError) -> BlobID {
        guard let id = BlobID(text) else {
            throw ApusError(.badParameter, "'\(text)' is not a blob's name: 64 lower-case hexadecimal digits")
        }
        return id
    }
}

/// The result of a verb for one blob.
private struct BlobReport: Encodable {
    /// The blob's name.
    var blob: String
    /// The file that was read or written, if any.
    var file: String?
    /// The size of the blob, if its content was read.
    var bytes: Int?
}

/// `apus admin blobs list`: prints the blobs' names.
struct AdminBlobsList: AsyncParsableCommand {
    static let configuration = CommandConfiguration(commandName: "list", abstract: "Print the names of all blobs.")

    @OptionGroup var records: RecordsOption
    @OptionGroup var output: OutputOptions

    func run() async throws {
        let store = try await AdminBlobs.open(records)
        var list = ListOutput("blobs", output)
        var last: BlobID?
        while true {
            let page = try await store.list(after: last, limit: 1000)
            guard !page.isEmpty else { return list.end() }
            for id in page { list.add("\(id)", json: "\"\(id)\"") }
            last = page.last
        }
    }
}

/// `apus admin blobs put`: stores the content of a file.
struct AdminBlobsPut: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "put", abstract: "Store the content of a file, and print the blob's name.")

    @OptionGroup var records: RecordsOption
    @Argument(help: "Read this file.") var file: String
    @OptionGroup var output: OutputOptions

    func run() async throws {
        guard let content = FileManager.default.contents(atPath: file) else {
            throw ApusError(.storageFailed, "\(file) cannot be read")
        }
        let id = try await AdminBlobs.open(records).put([UInt8](content))
        try output.show(BlobReport(blob: "\(id)", file: file, bytes: content.count), ["\(id)"])
    }
}

/// `apus admin blobs get`: writes a blob to a file.
struct AdminBlobsGet: AsyncParsableCommand {
    static let configuration = CommandConfiguration(commandName: "get", abstract: "Write a blob to a new file.")

    @OptionGroup var records: RecordsOption
    @Argument(help: "Read the blob with this name.") var name: String
    @Argument(help: "Write this file, which must not exist.") var file: String
    @OptionGroup var output: OutputOptions

    func run() async throws {
        let id = try AdminBlobs.id(name)
        guard let content = try await AdminBlobs.open(records).get(id) else {
            throw ApusError(.targetUnknown, "there is no blob \(id)")
        }
        do {
            try Data(content).write(to: URL(fileURLWithPath: file), options: .withoutOverwriting)
        } catch {
            throw ApusError(.storageFailed, "\(file) cannot be created: \(error.localizedDescription)")
        }
        try output.show(BlobReport(blob: "\(id)", file: file, bytes: content.count), [])
    }
}

/// `apus admin blobs remove`.
struct AdminBlobsRemove: AsyncParsableCommand {
    static let configuration = CommandConfiguration(commandName: "remove", abstract: "Remove a blob.")

    @OptionGroup var records: RecordsOption
    @Argument(help: "Remove the blob with this name.") var name: String
    @OptionGroup var output: OutputOptions

    func run() async throws {
        try await AdminBlobs.open(records).remove(try AdminBlobs.id(name))
        try output.show(BlobReport(blob: name), [])
    }
}
