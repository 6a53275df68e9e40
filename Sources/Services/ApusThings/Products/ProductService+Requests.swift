package import ApusClientAPI
import ApusCluster
import ApusContract
import ApusCore
import ApusSessions
import SwiftProtobuf

extension ProductService {
    /// The longest request, in bytes: the largest schema, with the escapes that JSON in JSON needs.
    private static let requestByteCountMax = 2 * ThingSchema.byteCountMax + 4096

    /// Registers the requests. Operators manage the products of any customer, and a customer manages its own.
    package func add(to api: inout ClientAPI) {
        api.on(
            ClientPutProductRequest.self, byteCountMax: Self.requestByteCountMax,
            orderKey: { "\($0.customer)/\($0.product)" }
        ) { [self] request, call throws(ApusError) in
            let customer = try await customer(named: request.customer, call)
            let product = try ProductID(checking: request.product, "the product")
            _ = try ThingSchema(request.schema)
            return ClientProduct(
                try await records.put(
                    product, of: customer, schema: request.schema, ifRevision: request.ifRevision,
                    countMax: configuration.productsMax, wallMilliseconds: clock.wallMilliseconds()))
        }
        api.on(ClientGetProductRequest.self) { [self] request, call throws(ApusError) in
            let customer = try await customer(named: request.customer, call)
            let product = try ProductID(checking: request.product, "the product")
            guard let found = try await records.product(product, of: customer) else { throw ApusError.noProduct }
            return ClientProduct(found)
        }
        api.on(ClientListProductsRequest.self) { [self] request, call throws(ApusError) in
            let customer = try await customer(named: request.customer, call)
            let last = try request.pageToken.isEmpty ? nil : ProductID(checking: request.pageToken, "pageToken")
            let limit = Int(min(request.pageSize == 0 ? 100 : request.pageSize, 500))
            let found = try await records.products(of: customer, after: last, limit: limit)
            return .with {
                $0.products = found.map { product in
                    var shown = ClientProduct(product)
                    shown.schema = ""
                    return shown
                }
                if found.count == limit { $0.nextPageToken = found.last?.product ?? "" }
            }
        }
        api.on(
            ClientDeleteProductRequest.self, orderKey: { "\($0.customer)/\($0.product)" }
        ) { [self] request, call throws(ApusError) in
            let customer = try await customer(named: request.customer, call)
            try await records.delete(try ProductID(checking: request.product, "the product"), of: customer)
            return ClientDeleteProductResponse()
        }
    }

    /// The customer that a request names; empty for ``CustomerID/none``.
    ///
    /// - Throws: as ``ClientCall/customer(named:)``; 8002 for an unknown customer.
    private func customer(named name: String, _ call: ClientCall) async throws(ApusError) -> String {
        let customer = try call.customer(named: name)
        try await sessions.check(customer)
        return customer?.rawValue ?? ""
    }
}

extension ClientProduct {
    fileprivate init(_ stored: ThingStoredProduct) {
        self.init()
        customer = stored.customer.isEmpty ? CustomerID.none : stored.customer
        (product, schema, revision) = (stored.product, stored.schema, stored.revision)
        (createdMs, changedMs) = (stored.createdMs, stored.changedMs)
    }
}
