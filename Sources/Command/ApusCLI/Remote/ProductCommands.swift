import ApusContract
import ApusCore
import ApusThings
import ArgumentParser
import Foundation
import SwiftProtobuf

// Products and their schemas (IV-D1 to IV-D5, docs/things.md), with an operator's token or a customer's key.

/// `apus products`
struct ProductsCommand: ParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "products", abstract: "Manage products, and the schemas of their devices' models.",
        subcommands: [
            PutProductCommand.self, GetProductCommand.self, ListProductsCommand.self, DeleteProductCommand.self,
            CheckProductCommand.self,
        ])
}

/// What the verbs of a cluster's products share.
struct ProductOptions: ParsableArguments {
    @OptionGroup var operators: OperatorOptions
    @Option(help: "The customer of the product. Default: -, which is none.") var customer = CustomerID.none
}

/// `apus products put PRODUCT --schema FILE`
struct PutProductCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "put", abstract: "Create a product, or replace its schema.",
        discussion: "The schema applies at every node within 5 seconds.")
    @OptionGroup var options: ProductOptions
    @Argument(help: "The product's name.") var product: String
    @Option(help: "Read the schema from this file.") var schema: String
    @Option(help: "Replace the schema only if the product has this revision.") var ifRevision: UInt64?

    func run() async throws {
        let text = try SchemaFile.text(schema)
        // The same check as at the node, without a message.
        _ = try ThingSchema(text)
        let request = ClientPutProductRequest.with {
            ($0.customer, $0.product, $0.schema) = (options.customer, product, text)
            $0.ifRevision = ifRevision ?? 0
        }
        try await options.operators.show(request) { [["The product \(product) has revision \($0.revision)."]] }
    }
}

/// `apus products get PRODUCT`
struct GetProductCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(commandName: "get", abstract: "Print the schema of a product.")
    @OptionGroup var options: ProductOptions
    @Argument(help: "The product's name.") var product: String

    func run() async throws {
        let request = ClientGetProductRequest.with { ($0.customer, $0.product) = (options.customer, product) }
        let answer = try await options.operators.api().ask(request)
        try options.operators.output.show(ProductReport(answer), [answer.schema])
    }
}

/// A product with `--json`: as the API has it, but the schema is a part of the object.
struct ProductReport: Encodable {
    var customer: String
    var product: String
    var schema: JSONText
    var revision: UInt64
    var createdMs: Int64
    var changedMs: Int64

    init(_ product: ClientProduct) {
        (customer, self.product, revision) = (product.customer, product.product, product.revision)
        (schema, createdMs, changedMs) = (JSONText(product.schema), product.createdMs, product.changedMs)
    }
}

/// `apus products list`
struct ListProductsCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(commandName: "list", abstract: "List the products of a customer.")
    @OptionGroup var options: ProductOptions
    @Option(help: "List those after this one.") var after = ""

    func run() async throws {
        let request = ClientListProductsRequest.with { ($0.customer, $0.pageToken) = (options.customer, after) }
        try await options.operators.show(request) { answer in
            [["PRODUCT", "REVISION", "CHANGED"]]
                + answer.products.map { product in
                    [product.product, "\(product.revision)", TimeText.of(milliseconds: product.changedMs)]
                }
        }
    }
}

/// `apus products delete PRODUCT`
struct DeleteProductCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "delete", abstract: "Delete a product: its devices' models are checked no more.")
    @OptionGroup var options: ProductOptions
    @Argument(help: "The product's name.") var product: String

    func run() async throws {
        let request = ClientDeleteProductRequest.with { ($0.customer, $0.product) = (options.customer, product) }
        try await options.operators.show(request) { _ in [["The product \(product) is deleted."]] }
    }
}

/// `apus products check FILE`
struct CheckProductCommand: ParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "check", abstract: "Check a schema, and a value against it, without a cluster.")
    @Argument(help: "The file with the schema.") var file: String
    @Option(
        parsing: .upToNextOption,
        help: "Check this value: a path and JSON, such as ProWritable.volume '{\"setVal\":3}'.")
    var value: [String] = []
    @OptionGroup var output: OutputOptions

    private struct Report: Encodable {
        var file: String
        /// Of the value.
        var path: String?
    }

    func validate() throws {
        guard value.isEmpty || value.count == 2 else { throw ValidationError("--value takes a path and JSON.") }
    }

    func run() throws {
        let schema = try ThingSchema(try SchemaFile.text(file))
        guard value.count == 2 else {
            return try output.show(Report(file: file), ["The schema is valid."])
        }
        let part = try ThingPart(try ThingPath(value[0]), value[1])
        try schema.check(part)
        try output.show(Report(file: file, path: part.path), ["\(part.path) fits the schema."])
    }
}

enum SchemaFile {
    /// The text of a file.
    /// - Throws: 21031 if it cannot be read, or is not UTF-8.
    static func text(_ path: String) throws(ApusError) -> String {
        guard let content = FileManager.default.contents(atPath: path),
            let text = String(bytes: content, encoding: .utf8)
        else { throw ApusError(.badParameter, "the schema cannot be read from \(path)") }
        return text
    }
}
