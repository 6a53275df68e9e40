import ApusCore
import ApusNode
import ApusStorage
import ArgumentParser
import Foundation

/// `apus admin blobs`: larger pieces of bytes, by the SHA-256 of their content.
struct AdminBlobs: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "blobs", abstract: "List, add, print and remove blobs of a cluster.",
        discussion: "Works on a cluster that runs and on one that is stopped, on the machine that has its blobs.",
        subcommands: [AdminBlobsList.self, AdminBlobsPut.self, AdminBlobsGet.self, AdminBlobsRemove.self])

    static func open(_ records: RecordsOption) async throws(ApusError) -> DirectoryBlobStore {
        let configuration = try records.configuration
        return try await DirectoryBlobStore(path: configuration.blobsDirectory, limits: configuration.blobs)
    }

    static func id(_ text: String) throws(ApusError) -> BlobID {
        guard let id = BlobID(text) else {
            throw ApusError(.badParameter, "'\(text)' is no name of a blob: 64 hexadecimal digits in lower case")
        }
        return id
    }
}

/// `apus admin blobs list`: their names.
struct AdminBlobsList: AsyncParsableCommand {
    static let configuration = CommandConfiguration(commandName: "list", abstract: "Print the names of all blobs.")

    @OptionGroup var records: RecordsOption

    func run() async throws {
        try await CommandFailure.reported {
            let store = try await AdminBlobs.open(records)
            var last: BlobID?
            while true {
                let page = try await store.list(after: last, limit: 1000)
                guard !page.isEmpty else { return }
                for id in page { print(id) }
                last = page.last
            }
        }
    }
}

/// `apus admin blobs put`: keeps the bytes of a file.
struct AdminBlobsPut: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "put", abstract: "Keep the bytes of a file, and print the blob's name.")

    @OptionGroup var records: RecordsOption
    @Argument(help: "The file to read.") var file: String

    func run() async throws {
        try await CommandFailure.reported {
            guard let content = FileManager.default.contents(atPath: file) else {
                throw ApusError(.storageFailed, "\(file) cannot be read")
            }
            print(try await AdminBlobs.open(records).put([UInt8](content)))
        }
    }
}

/// `apus admin blobs get`: writes the bytes to a file.
struct AdminBlobsGet: AsyncParsableCommand {
    static let configuration = CommandConfiguration(commandName: "get", abstract: "Write a blob to a new file.")

    @OptionGroup var records: RecordsOption
    @Argument(help: "The blob's name.") var name: String
    @Argument(help: "The file to make; it must not exist.") var file: String

    func run() async throws {
        try await CommandFailure.reported {
            let id = try AdminBlobs.id(name)
            guard let content = try await AdminBlobs.open(records).get(id) else {
                throw ApusError(.targetUnknown, "there is no blob \(id)")
            }
            do {
                try Data(content).write(to: URL(fileURLWithPath: file), options: .withoutOverwriting)
            } catch {
                throw ApusError(.storageFailed, "\(file) cannot be made: \(error.localizedDescription)")
            }
        }
    }
}

/// `apus admin blobs remove`.
struct AdminBlobsRemove: AsyncParsableCommand {
    static let configuration = CommandConfiguration(commandName: "remove", abstract: "Remove a blob.")

    @OptionGroup var records: RecordsOption
    @Argument(help: "The blob's name.") var name: String

    func run() async throws {
        try await CommandFailure.reported { try await AdminBlobs.open(records).remove(try AdminBlobs.id(name)) }
    }
}
