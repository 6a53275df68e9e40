import ApusCore
import ApusLocal
import ApusNode
import ApusNodeConfiguration
import ApusStorage
import ArgumentParser
import Foundation

/// Selects the records of a command: those of a local cluster, or of a node's configuration.
struct RecordsOption: ParsableArguments {
    @OptionGroup var directory: DirectoryOption
    @Option(name: .customLong("config"), help: "Read a node's configuration, instead of --dir.")
    var config: String?

    var configuration: NodeConfiguration {
        get throws(ApusError) { try Self.configuration(config, directory) }
    }

    /// ``configuration``, if the records are in a file.
    var fileConfiguration: NodeConfiguration {
        get throws(ApusError) {
            let configuration = try configuration
            guard configuration.recordsURL.isEmpty else {
                throw ApusError(.badParameter, "the records are in PostgreSQL; use pg_dump and pg_restore")
            }
            return configuration
        }
    }

    /// - Throws: 10020 if there is no local cluster, 10022 if the configuration is not valid.
    static func configuration(
        _ config: String?, _ directory: DirectoryOption
    ) throws(ApusError) -> NodeConfiguration {
        if let config { return try NodeConfiguration(file: config) }
        let local = try directory.cluster()
        guard let node = local.mark.nodes.first else { throw ApusError(.stateForeign, "the cluster has no nodes") }
        return try NodeConfiguration(file: local.directory.configurationFile(node.name))
    }
}

/// `apus admin records`: shows the services' records.
struct AdminRecords: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "records", abstract: "Show records of a cluster as JSON.",
        discussion: """
            Works on the machine with the records, whether the cluster is running or not. For the names of \
            collections and indexes, use `apus admin records list`.
            """,
        subcommands: [AdminRecordsList.self, AdminRecordsGet.self, AdminRecordsScan.self])
}

/// `apus admin records list`: lists the collections.
struct AdminRecordsList: AsyncParsableCommand {
    static let configuration = CommandConfiguration(commandName: "list", abstract: "List the collections and indexes.")

    @OptionGroup var output: OutputOptions

    private struct Report: Encodable {
        struct Collection: Encodable {
            var name: String
            var indexes: [String]
        }
        var collections: [Collection]
    }

    func run() async throws {
        let collections = RecordKeyText.catalogue.collections
        try output.show(
            Report(collections: collections.map { .init(name: $0.name, indexes: $0.indexNames) }),
            collections.map { collection in
                let indexes = collection.indexNames.joined(separator: ", ")
                return collection.name + (indexes.isEmpty ? "" : ", by \(indexes)")
            })
    }
}

/// `apus admin records get`: prints one record.
struct AdminRecordsGet: AsyncParsableCommand {
    static let configuration = CommandConfiguration(commandName: "get", abstract: "Print one record.")

    @OptionGroup var records: RecordsOption
    @Argument(help: "Read this collection.") var collection: String
    @Argument(help: ArgumentHelp(RecordKeyText.help)) var key: [String]
    @OptionGroup var output: OutputOptions

    func run() async throws {
        let declared = try RecordKeyText.collection(collection)
        let store = try await NodeRecords.look(records.configuration)
        let key = try RecordKeyText.key(key)
        guard let found = try await store.records(collection, [key]).first ?? nil else {
            throw ApusError(.targetUnknown, "there is no record \(collection)/\(key)")
        }
        // A record is printed as JSON with and without the option.
        Console.say(try RecordKeyText.line(found, declared))
        await store.close()
    }
}

/// `apus admin records scan`: prints records in order.
struct AdminRecordsScan: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "scan", abstract: "Print the records of a collection, in order.",
        discussion: "Prints a JSON object for each record, a line each; with --json one object that contains them.")

    @OptionGroup var records: RecordsOption
    @Argument(help: "Read this collection.") var collection: String
    @Argument(help: ArgumentHelp("Print only records whose key or index entry starts so. \(RecordKeyText.help)"))
    var prefix: [String] = []
    @Option(name: .customLong("by"), help: "Use the order of this index. Default: that of the key.") var index: String?
    @Option(help: "Print at most this number of records; 0 means all.") var limit = 100
    @OptionGroup var output: OutputOptions

    func run() async throws {
        let declared = try RecordKeyText.collection(collection)
        if let index, !declared.indexNames.contains(index) {
            throw ApusError(.badParameter, "\(collection) has no index \(index)")
        }
        let store = try await NodeRecords.look(records.configuration)
        let from = try RecordKeyText.key(prefix)
        var scan = RecordScan(collection, index: index, from: from, below: from.end)
        var list = ListOutput("records", output)
        var count = 0
        repeat {
            if limit > 0 { scan.limit = limit - count }
            let page = try await store.page(scan)
            for record in page.records {
                let line = try RecordKeyText.line(record, declared)
                list.add(line, json: line)
            }
            count += page.records.count
            scan.token = page.next
        } while scan.token != nil && (limit == 0 || count < limit)
        list.end()
        await store.close()
    }
}

/// Converts keys and records between their text for operators and their types.
enum RecordKeyText {
    static let help = "Write the key as its parts: text, unsigned numbers as u:7, signed numbers as i:-7."

    /// The collections of all services of this program.
    static var catalogue: RecordCatalogue { ProgramServices.records }

    static func collection(_ name: String) throws(ApusError) -> any RecordCollectionDeclaration {
        guard let collection = catalogue[name] else {
            let names = catalogue.collections.map(\.name).joined(separator: ", ")
            throw ApusError(.badParameter, "there is no collection \(name); the collections are: \(names)")
        }
        return collection
    }

    static func key(_ parts: [String]) throws(ApusError) -> OrderedKey {
        var key: [OrderedKey.Part] = []
        for part in parts {
            if part.hasPrefix("i:"), let number = Int64(part.dropFirst(2)) {
                key.append(.signed(number))
            } else if part.hasPrefix("u:"), let number = UInt64(part.dropFirst(2)) {
                key.append(.unsigned(number))
            } else {
                key.append(.text(part))
            }
        }
        return OrderedKey(key)
    }

    /// Formats a record as one line of JSON.
    static func line(
        _ record: StoredRecord, _ collection: any RecordCollectionDeclaration
    ) throws(ApusError) -> String {
        let body = try collection.json(record)
        let fence = #""epoch":\#(record.fence.epoch),"writer":"\#(record.fence.writer)""#
        return #"{"collection":"\#(collection.name)","version":\#(record.version),\#(fence),"record":\#(body)}"#
    }
}
