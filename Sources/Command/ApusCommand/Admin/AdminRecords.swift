import ApusCore
import ApusLocal
import ApusNode
import ApusStorage
import ArgumentParser
import Foundation

/// Which records a verb is about: those of a local cluster, or of a node's configuration.
struct RecordsOption: ParsableArguments {
    @OptionGroup var directory: DirectoryOption
    @Option(name: .customLong("config"), help: "A node's configuration, instead of --dir.")
    var config: String?

    var configuration: NodeConfiguration {
        get throws(ApusError) { try Self.configuration(config, directory) }
    }

    /// As ``configuration``, where the records are a file.
    var fileConfiguration: NodeConfiguration {
        get throws(ApusError) {
            let configuration = try configuration
            guard configuration.recordsURL.isEmpty else {
                throw ApusError(.badParameter, "the records are in PostgreSQL; use pg_dump and pg_restore")
            }
            return configuration
        }
    }

    /// - Throws: 10020 where there is no local cluster, 10022 where the configuration is not valid.
    static func configuration(
        _ config: String?, _ directory: DirectoryOption
    ) throws(ApusError) -> NodeConfiguration {
        if let config { return try NodeConfiguration(file: config) }
        let local = try directory.cluster()
        guard let node = local.mark.nodes.first else { throw ApusError(.stateForeign, "the cluster has no nodes") }
        return try NodeConfiguration(file: local.directory.configurationFile(node.name))
    }
}

/// `apus admin records`: what the services keep.
struct AdminRecords: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "records", abstract: "Show records of a cluster as JSON.",
        discussion: """
            Works on a cluster that runs and on one that is stopped, on the machine that has its records. Names of \
            collections and indexes: `apus admin records list`.
            """,
        subcommands: [AdminRecordsList.self, AdminRecordsGet.self, AdminRecordsScan.self])
}

/// `apus admin records list`: the collections.
struct AdminRecordsList: AsyncParsableCommand {
    static let configuration = CommandConfiguration(commandName: "list", abstract: "List the collections and indexes.")

    func run() async throws {
        for collection in RecordKeyText.catalogue.collections {
            let indexes = collection.indexNames.joined(separator: ", ")
            print(collection.name + (indexes.isEmpty ? "" : ", by \(indexes)"))
        }
    }
}

/// `apus admin records get`: one record.
struct AdminRecordsGet: AsyncParsableCommand {
    static let configuration = CommandConfiguration(commandName: "get", abstract: "Print one record.")

    @OptionGroup var records: RecordsOption
    @Argument(help: "The collection.") var collection: String
    @Argument(help: ArgumentHelp(RecordKeyText.help)) var key: [String]

    func run() async throws {
        try await CommandFailure.reported {
            let declared = try RecordKeyText.collection(collection)
            let store = try await NodeRecords.look(records.configuration)
            let key = try RecordKeyText.key(key)
            guard let found = try await store.records(collection, [key]).first ?? nil else {
                throw ApusError(.targetUnknown, "there is no record \(collection)/\(key)")
            }
            print(try RecordKeyText.line(found, declared))
            await store.close()
        }
    }
}

/// `apus admin records scan`: many records, in order.
struct AdminRecordsScan: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "scan", abstract: "Print the records of a collection, in order.")

    @OptionGroup var records: RecordsOption
    @Argument(help: "The collection.") var collection: String
    @Argument(help: ArgumentHelp("Only keys, or entries of the index, that begin with this. \(RecordKeyText.help)"))
    var prefix: [String] = []
    @Option(name: .customLong("by"), help: "The index whose order it is. Default: the key's.") var index: String?
    @Option(help: "The most records; 0: all.") var limit = 100

    func run() async throws {
        try await CommandFailure.reported {
            let declared = try RecordKeyText.collection(collection)
            if let index, !declared.indexNames.contains(index) {
                throw ApusError(.badParameter, "\(collection) has no index \(index)")
            }
            let store = try await NodeRecords.look(records.configuration)
            let from = try RecordKeyText.key(prefix)
            var scan = RecordScan(collection, index: index, from: from, below: from.end)
            var count = 0
            repeat {
                if limit > 0 { scan.limit = limit - count }
                let page = try await store.page(scan)
                for record in page.records { print(try RecordKeyText.line(record, declared)) }
                count += page.records.count
                scan.token = page.next
            } while scan.token != nil && (limit == 0 || count < limit)
            await store.close()
        }
    }
}

/// Keys as people write them, and records as they read them.
enum RecordKeyText {
    static let help = "The parts of the key: texts, numbers as u:7, numbers with a sign as i:-7."

    /// Of all services of this program.
    static var catalogue: RecordCatalogue { NodeRecords.catalogue(carrying: ApusProgram.services) }

    static func collection(_ name: String) throws(ApusError) -> any RecordCollectionDeclaration {
        guard let collection = catalogue[name] else {
            let names = catalogue.collections.map(\.name).joined(separator: ", ")
            throw ApusError(.badParameter, "there is no collection \(name); these are: \(names)")
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

    /// One line of JSON.
    static func line(
        _ record: StoredRecord, _ collection: any RecordCollectionDeclaration
    ) throws(ApusError) -> String {
        let body = try collection.json(record)
        let fence = #""epoch":\#(record.fence.epoch),"writer":"\#(record.fence.writer)""#
        return #"{"collection":"\#(collection.name)","version":\#(record.version),\#(fence),"record":\#(body)}"#
    }
}
