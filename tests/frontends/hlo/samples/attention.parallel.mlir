module @jit_rank attributes {mhlo.num_partitions = 2 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["tp"=2]> {stablehlo.mesh = {axes = [{name = "tp", size = 2 : i64}]}}
  func.func public @main(%arg0: tensor<8x4x4xf32>, %arg1: tensor<4x4x8xf32>, %arg2: tensor<8x4x4xf32>, %arg3: tensor<8x4x4xf32>, %arg4: tensor<2x8x8xf32>, %arg5: tensor<2x8x8xf32>) -> (tensor<f32> {jax.result_info = "result[0]"}, tensor<8x4x4xf32> {jax.result_info = "result[1]['k']"}, tensor<4x4x8xf32> {jax.result_info = "result[1]['o']"}, tensor<8x4x4xf32> {jax.result_info = "result[1]['q']"}, tensor<8x4x4xf32> {jax.result_info = "result[1]['v']"}) {
    %0:5 = sdy.manual_computation(%arg0, %arg1, %arg2, %arg3, %arg4, %arg5) in_shardings=[<@mesh, [{}, {"tp"}, {}]>, <@mesh, [{"tp"}, {}, {}]>, <@mesh, [{}, {"tp"}, {}]>, <@mesh, [{}, {"tp"}, {}]>, <@mesh, [{}, {}, {}]>, <@mesh, [{}, {}, {}]>] out_shardings=[<@mesh, []>, <@mesh, [{}, {"tp"}, {}]>, <@mesh, [{"tp"}, {}, {}]>, <@mesh, [{}, {"tp"}, {}]>, <@mesh, [{}, {"tp"}, {}]>] manual_axes={"tp"} (%arg6: tensor<8x2x4xf32>, %arg7: tensor<2x4x8xf32>, %arg8: tensor<8x2x4xf32>, %arg9: tensor<8x2x4xf32>, %arg10: tensor<2x8x8xf32>, %arg11: tensor<2x8x8xf32>) {
      %1 = stablehlo.dot_general %arg8, %arg10, contracting_dims = [0] x [2], precision = [DEFAULT, DEFAULT] : (tensor<8x2x4xf32>, tensor<2x8x8xf32>) -> tensor<2x4x2x8xf32>
      %2 = stablehlo.transpose %1, dims = [2, 0, 3, 1] : (tensor<2x4x2x8xf32>) -> tensor<2x2x8x4xf32>
      %3 = stablehlo.dot_general %arg6, %arg10, contracting_dims = [0] x [2], precision = [DEFAULT, DEFAULT] : (tensor<8x2x4xf32>, tensor<2x8x8xf32>) -> tensor<2x4x2x8xf32>
      %4 = stablehlo.transpose %3, dims = [2, 0, 3, 1] : (tensor<2x4x2x8xf32>) -> tensor<2x2x8x4xf32>
      %5 = stablehlo.dot_general %arg9, %arg10, contracting_dims = [0] x [2], precision = [DEFAULT, DEFAULT] : (tensor<8x2x4xf32>, tensor<2x8x8xf32>) -> tensor<2x4x2x8xf32>
      %6 = stablehlo.transpose %5, dims = [2, 0, 3, 1] : (tensor<2x4x2x8xf32>) -> tensor<2x2x8x4xf32>
      %7 = stablehlo.dot_general %2, %4, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [3], precision = [DEFAULT, DEFAULT] : (tensor<2x2x8x4xf32>, tensor<2x2x8x4xf32>) -> tensor<2x2x8x8xf32>
      %cst = stablehlo.constant dense<5.000000e-01> : tensor<f32>
      %8 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<2x2x8x8xf32>
      %9 = stablehlo.multiply %7, %8 : tensor<2x2x8x8xf32>
      %cst_0 = stablehlo.constant dense<0xFF800000> : tensor<f32>
      %10 = stablehlo.reduce(%9 init: %cst_0) applies stablehlo.maximum across dimensions = [3] : (tensor<2x2x8x8xf32>, tensor<f32>) -> tensor<2x2x8xf32>
      %cst_1 = stablehlo.constant dense<0xFF800000> : tensor<f32>
      %11 = stablehlo.broadcast_in_dim %cst_1, dims = [] : (tensor<f32>) -> tensor<2x2x8xf32>
      %12 = stablehlo.maximum %11, %10 : tensor<2x2x8xf32>
      %13 = stablehlo.is_finite %12 : (tensor<2x2x8xf32>) -> tensor<2x2x8xi1>
      %cst_2 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %14 = stablehlo.broadcast_in_dim %cst_2, dims = [] : (tensor<f32>) -> tensor<2x2x8xf32>
      %15 = stablehlo.select %13, %12, %14 : tensor<2x2x8xi1>, tensor<2x2x8xf32>
      %16 = stablehlo.broadcast_in_dim %15, dims = [0, 1, 2] : (tensor<2x2x8xf32>) -> tensor<2x2x8x1xf32>
      %17 = stablehlo.broadcast_in_dim %16, dims = [0, 1, 2, 3] : (tensor<2x2x8x1xf32>) -> tensor<2x2x8x8xf32>
      %18 = stablehlo.subtract %9, %17 : tensor<2x2x8x8xf32>
      %19 = stablehlo.exponential %18 : tensor<2x2x8x8xf32>
      %cst_3 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %20 = stablehlo.reduce(%19 init: %cst_3) applies stablehlo.add across dimensions = [3] : (tensor<2x2x8x8xf32>, tensor<f32>) -> tensor<2x2x8xf32>
      %21 = stablehlo.sign %20 : tensor<2x2x8xf32>
      %22 = stablehlo.abs %20 : tensor<2x2x8xf32>
      %23 = stablehlo.log %22 : tensor<2x2x8xf32>
      %24 = stablehlo.add %23, %15 : tensor<2x2x8xf32>
      %cst_4 = stablehlo.constant dense<0xFF800000> : tensor<f32>
      %25 = stablehlo.reduce(%9 init: %cst_4) applies stablehlo.maximum across dimensions = [3] : (tensor<2x2x8x8xf32>, tensor<f32>) -> tensor<2x2x8xf32>
      %cst_5 = stablehlo.constant dense<0xFF800000> : tensor<f32>
      %26 = stablehlo.broadcast_in_dim %cst_5, dims = [] : (tensor<f32>) -> tensor<2x2x8xf32>
      %27 = stablehlo.maximum %26, %25 : tensor<2x2x8xf32>
      %28 = stablehlo.broadcast_in_dim %27, dims = [0, 1, 2] : (tensor<2x2x8xf32>) -> tensor<2x2x8x1xf32>
      %29 = stablehlo.broadcast_in_dim %28, dims = [0, 1, 2, 3] : (tensor<2x2x8x1xf32>) -> tensor<2x2x8x8xf32>
      %30 = stablehlo.subtract %9, %29 : tensor<2x2x8x8xf32>
      %31 = stablehlo.exponential %30 : tensor<2x2x8x8xf32>
      %cst_6 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %32 = stablehlo.reduce(%31 init: %cst_6) applies stablehlo.add across dimensions = [3] : (tensor<2x2x8x8xf32>, tensor<f32>) -> tensor<2x2x8xf32>
      %33 = stablehlo.broadcast_in_dim %32, dims = [0, 1, 2] : (tensor<2x2x8xf32>) -> tensor<2x2x8x1xf32>
      %34 = stablehlo.broadcast_in_dim %33, dims = [0, 1, 2, 3] : (tensor<2x2x8x1xf32>) -> tensor<2x2x8x8xf32>
      %35 = stablehlo.divide %31, %34 : tensor<2x2x8x8xf32>
      %36 = stablehlo.dot_general %35, %6, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [2], precision = [DEFAULT, DEFAULT] : (tensor<2x2x8x8xf32>, tensor<2x2x8x4xf32>) -> tensor<2x2x8x4xf32>
      %37 = stablehlo.dot_general %36, %arg7, contracting_dims = [3, 1] x [1, 0], precision = [DEFAULT, DEFAULT] : (tensor<2x2x8x4xf32>, tensor<2x4x8xf32>) -> tensor<2x8x8xf32>
      %38 = "stablehlo.all_reduce"(%37) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, use_global_device_ids}> ({
      ^bb0(%arg12: tensor<f32>, %arg13: tensor<f32>):
        %88 = stablehlo.add %arg12, %arg13 : tensor<f32>
        stablehlo.return %88 : tensor<f32>
      }) : (tensor<2x8x8xf32>) -> tensor<2x8x8xf32>
      %39 = stablehlo.add %arg10, %38 : tensor<2x8x8xf32>
      %40 = stablehlo.subtract %39, %arg11 : tensor<2x8x8xf32>
      %41 = stablehlo.multiply %40, %40 : tensor<2x8x8xf32>
      %cst_7 = stablehlo.constant dense<2.000000e+00> : tensor<f32>
      %42 = stablehlo.broadcast_in_dim %cst_7, dims = [] : (tensor<f32>) -> tensor<2x8x8xf32>
      %43 = stablehlo.multiply %42, %40 : tensor<2x8x8xf32>
      %cst_8 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %44 = stablehlo.reduce(%41 init: %cst_8) applies stablehlo.add across dimensions = [0, 1, 2] : (tensor<2x8x8xf32>, tensor<f32>) -> tensor<f32>
      %cst_9 = stablehlo.constant dense<1.280000e+02> : tensor<f32>
      %45 = stablehlo.divide %44, %cst_9 : tensor<f32>
      %cst_10 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
      %cst_11 = stablehlo.constant dense<1.280000e+02> : tensor<f32>
      %46 = stablehlo.divide %cst_10, %cst_11 : tensor<f32>
      %47 = stablehlo.broadcast_in_dim %46, dims = [] : (tensor<f32>) -> tensor<2x8x8xf32>
      %48 = stablehlo.multiply %47, %43 : tensor<2x8x8xf32>
      %49 = stablehlo.dot_general %48, %36, contracting_dims = [0, 1] x [0, 2], precision = [DEFAULT, DEFAULT] : (tensor<2x8x8xf32>, tensor<2x2x8x4xf32>) -> tensor<8x2x4xf32>
      %50 = stablehlo.transpose %49, dims = [1, 2, 0] : (tensor<8x2x4xf32>) -> tensor<2x4x8xf32>
      %51 = stablehlo.dot_general %48, %arg7, contracting_dims = [2] x [2], precision = [DEFAULT, DEFAULT] : (tensor<2x8x8xf32>, tensor<2x4x8xf32>) -> tensor<2x8x2x4xf32>
      %52 = stablehlo.transpose %51, dims = [0, 2, 1, 3] : (tensor<2x8x2x4xf32>) -> tensor<2x2x8x4xf32>
      %53 = stablehlo.dot_general %2, %4, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [3], precision = [DEFAULT, DEFAULT] : (tensor<2x2x8x4xf32>, tensor<2x2x8x4xf32>) -> tensor<2x2x8x8xf32>
      %cst_12 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
      %54 = stablehlo.broadcast_in_dim %cst_12, dims = [] : (tensor<f32>) -> tensor<2x2x8x8xf32>
      %55 = stablehlo.multiply %53, %54 : tensor<2x2x8x8xf32>
      %cst_13 = stablehlo.constant dense<0xFF800000> : tensor<f32>
      %56 = stablehlo.reduce(%55 init: %cst_13) applies stablehlo.maximum across dimensions = [3] : (tensor<2x2x8x8xf32>, tensor<f32>) -> tensor<2x2x8xf32>
      %cst_14 = stablehlo.constant dense<0xFF800000> : tensor<f32>
      %57 = stablehlo.broadcast_in_dim %cst_14, dims = [] : (tensor<f32>) -> tensor<2x2x8xf32>
      %58 = stablehlo.maximum %57, %56 : tensor<2x2x8xf32>
      %59 = stablehlo.broadcast_in_dim %58, dims = [0, 1, 2] : (tensor<2x2x8xf32>) -> tensor<2x2x8x1xf32>
      %60 = stablehlo.broadcast_in_dim %59, dims = [0, 1, 2, 3] : (tensor<2x2x8x1xf32>) -> tensor<2x2x8x8xf32>
      %61 = stablehlo.subtract %55, %60 : tensor<2x2x8x8xf32>
      %62 = stablehlo.exponential %61 : tensor<2x2x8x8xf32>
      %cst_15 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %63 = stablehlo.reduce(%62 init: %cst_15) applies stablehlo.add across dimensions = [3] : (tensor<2x2x8x8xf32>, tensor<f32>) -> tensor<2x2x8xf32>
      %64 = stablehlo.broadcast_in_dim %63, dims = [0, 1, 2] : (tensor<2x2x8xf32>) -> tensor<2x2x8x1xf32>
      %65 = stablehlo.broadcast_in_dim %64, dims = [0, 1, 2, 3] : (tensor<2x2x8x1xf32>) -> tensor<2x2x8x8xf32>
      %66 = stablehlo.divide %62, %65 : tensor<2x2x8x8xf32>
      %67 = stablehlo.dot_general %66, %52, batching_dims = [0, 1] x [0, 1], contracting_dims = [2] x [2], precision = [DEFAULT, DEFAULT] : (tensor<2x2x8x8xf32>, tensor<2x2x8x4xf32>) -> tensor<2x2x8x4xf32>
      %68 = stablehlo.dot_general %52, %6, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [3], precision = [DEFAULT, DEFAULT] : (tensor<2x2x8x4xf32>, tensor<2x2x8x4xf32>) -> tensor<2x2x8x8xf32>
      %69 = stablehlo.multiply %52, %36 : tensor<2x2x8x4xf32>
      %cst_16 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %70 = stablehlo.reduce(%69 init: %cst_16) applies stablehlo.add across dimensions = [3] : (tensor<2x2x8x4xf32>, tensor<f32>) -> tensor<2x2x8xf32>
      %71 = stablehlo.broadcast_in_dim %70, dims = [0, 1, 2] : (tensor<2x2x8xf32>) -> tensor<2x2x8x1xf32>
      %72 = stablehlo.broadcast_in_dim %71, dims = [0, 1, 2, 3] : (tensor<2x2x8x1xf32>) -> tensor<2x2x8x8xf32>
      %73 = stablehlo.subtract %68, %72 : tensor<2x2x8x8xf32>
      %74 = stablehlo.multiply %66, %73 : tensor<2x2x8x8xf32>
      %cst_17 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
      %75 = stablehlo.broadcast_in_dim %cst_17, dims = [] : (tensor<f32>) -> tensor<2x2x8x8xf32>
      %76 = stablehlo.multiply %74, %75 : tensor<2x2x8x8xf32>
      %77 = stablehlo.dot_general %76, %4, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [2], precision = [DEFAULT, DEFAULT] : (tensor<2x2x8x8xf32>, tensor<2x2x8x4xf32>) -> tensor<2x2x8x4xf32>
      %78 = stablehlo.dot_general %76, %2, batching_dims = [0, 1] x [0, 1], contracting_dims = [2] x [2], precision = [DEFAULT, DEFAULT] : (tensor<2x2x8x8xf32>, tensor<2x2x8x4xf32>) -> tensor<2x2x8x4xf32>
      %79 = stablehlo.transpose %67, dims = [1, 3, 0, 2] : (tensor<2x2x8x4xf32>) -> tensor<2x4x2x8xf32>
      %80 = stablehlo.dot_general %79, %arg10, contracting_dims = [2, 3] x [0, 1], precision = [DEFAULT, DEFAULT] : (tensor<2x4x2x8xf32>, tensor<2x8x8xf32>) -> tensor<2x4x8xf32>
      %81 = stablehlo.transpose %80, dims = [2, 0, 1] : (tensor<2x4x8xf32>) -> tensor<8x2x4xf32>
      %82 = stablehlo.transpose %78, dims = [1, 3, 0, 2] : (tensor<2x2x8x4xf32>) -> tensor<2x4x2x8xf32>
      %83 = stablehlo.dot_general %82, %arg10, contracting_dims = [2, 3] x [0, 1], precision = [DEFAULT, DEFAULT] : (tensor<2x4x2x8xf32>, tensor<2x8x8xf32>) -> tensor<2x4x8xf32>
      %84 = stablehlo.transpose %83, dims = [2, 0, 1] : (tensor<2x4x8xf32>) -> tensor<8x2x4xf32>
      %85 = stablehlo.transpose %77, dims = [1, 3, 0, 2] : (tensor<2x2x8x4xf32>) -> tensor<2x4x2x8xf32>
      %86 = stablehlo.dot_general %85, %arg10, contracting_dims = [2, 3] x [0, 1], precision = [DEFAULT, DEFAULT] : (tensor<2x4x2x8xf32>, tensor<2x8x8xf32>) -> tensor<2x4x8xf32>
      %87 = stablehlo.transpose %86, dims = [2, 0, 1] : (tensor<2x4x8xf32>) -> tensor<8x2x4xf32>
      sdy.return %45, %84, %50, %87, %81 : tensor<f32>, tensor<8x2x4xf32>, tensor<2x4x8xf32>, tensor<8x2x4xf32>, tensor<8x2x4xf32>
    } : (tensor<8x4x4xf32>, tensor<4x4x8xf32>, tensor<8x4x4xf32>, tensor<8x4x4xf32>, tensor<2x8x8xf32>, tensor<2x8x8xf32>) -> (tensor<f32>, tensor<8x4x4xf32>, tensor<4x4x8xf32>, tensor<8x4x4xf32>, tensor<8x4x4xf32>)
    return %0#0, %0#1, %0#2, %0#3, %0#4 : tensor<f32>, tensor<8x4x4xf32>, tensor<4x4x8xf32>, tensor<8x4x4xf32>, tensor<8x4x4xf32>
  }
}
